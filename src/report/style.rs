//! Colours of the text output.

use anstyle::{AnsiColor, Style};

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The styles of one output: either colours or plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Palette {
    colored: bool,
}

impl Palette {
    /// Text without any escape sequence.
    pub const PLAIN: Self = Self { colored: false };
    /// Text with colours.
    pub const COLORED: Self = Self { colored: true };

    /// Whether this palette has colours.
    pub const fn is_colored(self) -> bool {
        self.colored
    }

    /// Something that is as it should be.
    pub fn good(self, text: &str) -> String {
        self.paint(AnsiColor::Green.on_default(), text)
    }

    /// Something that is lost or blocked.
    pub fn bad(self, text: &str) -> String {
        self.paint(AnsiColor::Red.on_default().bold(), text)
    }

    /// Something that cannot be told, or limits what is possible.
    pub fn doubt(self, text: &str) -> String {
        self.paint(AnsiColor::Yellow.on_default(), text)
    }

    /// A heading.
    pub fn head(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    /// Something of less weight.
    pub fn faint(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    /// The drawing of a tree, which may be empty.
    pub fn faint_if_any(self, text: &str) -> String {
        if text.trim().is_empty() {
            text.to_owned()
        } else {
            self.faint(text)
        }
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.colored {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}
