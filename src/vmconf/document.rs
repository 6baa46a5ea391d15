//! A VM configuration with every byte kept.
