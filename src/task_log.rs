//! Lines of a task log: what the hook says, and with which weight.

use crate::report::escape;

/// What the hook has to say, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskLog {
    lines: Vec<String>,
}

impl TaskLog {
    /// Adds a line.
    ///
    /// Whoever makes a line escapes what is in it. A character that would still forge another line, or move a cursor, is
    /// escaped here.
    pub fn line(&mut self, line: impl Into<String>) {
        let line = line.into();
        let safe = escape::is_safe(&line);
        self.lines
            .push(if safe { line } else { escape::text(&line) });
    }

    /// Adds a warning, which Proxmox shows in colour.
    pub fn warning(&mut self, what: impl AsRef<str>) {
        self.line(format!("WARN: {}", what.as_ref()));
    }

    /// Adds several lines.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.line(line);
        }
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
