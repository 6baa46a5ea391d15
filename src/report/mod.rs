//! What the program says: one model, and a renderer for each form.

pub mod diff;
pub mod escape;
pub mod model;
pub mod style;
pub mod text;
pub mod topology;
pub mod verified;
pub mod wrap;
