//! Lines of a task log: what the hook says, and with which weight.

/// What the hook has to say, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskLog {
    lines: Vec<String>,
}

impl TaskLog {
    /// Adds a line.
    pub fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Adds a warning, which Proxmox shows in colour.
    pub fn warning(&mut self, what: impl AsRef<str>) {
        self.lines.push(format!("WARN: {}", what.as_ref()));
    }

    /// Adds several lines.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = String>) {
        self.lines.extend(lines);
    }

    /// The lines, without line ends.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The text, each line with its end.
    pub fn text(&self) -> String {
        self.lines
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect()
    }
}
