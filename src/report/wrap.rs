//! Lines for a terminal: prose is broken at its width, what is for copying never is, nor a command
//! between backticks.
//!
//! A *label* is the word in front of a paragraph (`guest:`); the paragraph's further lines hang below its first one.
//! Escape sequences of [`super::style`] take no room. Every other character counts as one column: what is printed here is
//! ASCII but for names, and a name too wide only makes its own line longer.

use std::io::IsTerminal as _;

/// Columns where standard output is no terminal.
const DEFAULT: usize = 80;
/// Narrower terminals get lines of this length all the same: shorter ones cannot be read.
const NARROWEST: usize = 40;
/// Wider terminals get lines of this length: longer ones cannot be read either.
const WIDEST: usize = 100;

/// How many columns a line may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns(usize);

impl Default for Columns {
    fn default() -> Self {
        Self(DEFAULT)
    }
}

impl Columns {
    /// So many columns, within what can be read.
    pub fn new(columns: usize) -> Self {
        Self(columns.clamp(NARROWEST, WIDEST))
    }

    /// The width of the terminal on standard output, 80 where it is none.
    pub fn of_stdout() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::default();
        }
        terminal_size::terminal_size()
            .map_or_else(Self::default, |(width, _)| Self::new(usize::from(width.0)))
    }

    /// The number.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// A text under construction.
#[derive(Clone, Debug)]
pub struct Page {
    text: String,
    columns: Columns,
}

impl Page {
    /// An empty text for lines of this length.
    pub const fn new(columns: Columns) -> Self {
        Self {
            text: String::new(),
            columns,
        }
    }

    /// How long its lines are.
    pub const fn columns(&self) -> Columns {
        self.columns
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// An empty line between two parts; none at the beginning.
    pub fn gap(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    /// A line that is never broken, since people copy it: a command, a line of a configuration, an address.
    pub fn verbatim(&mut self, indent: usize, line: &str) {
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Whole lines as they are, each with its end.
    pub fn lines(&mut self, lines: &str) {
        self.text.push_str(lines);
    }

    /// A label and, behind it, a line that is never broken.
    pub fn labelled_verbatim(&mut self, indent: usize, label: &str, line: &str) {
        self.verbatim(indent, &format!("{label}{line}"));
    }

    /// A paragraph.
    pub fn prose(&mut self, indent: usize, text: &str) {
        self.labelled(indent, "", text);
    }

    /// A paragraph behind a label, which brings its own blanks. Further lines hang below the first word after it, or
    /// below the label where too little room would be left.
    pub fn labelled(&mut self, indent: usize, label: &str, text: &str) {
        let columns = self.columns.get();
        let mut hanging = indent + width(label);
        // More than a quarter of the line would be too much for blanks.
        if hanging * 4 > columns {
            hanging = indent + 2;
        }
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.text.push_str(label);
        let mut at = indent + width(label);
        let mut first = true;
        for word in words(text) {
            let length = width(word);
            if !first {
                if at + 1 + length > columns {
                    self.text.push('\n');
                    self.text.extend(std::iter::repeat_n(' ', hanging));
                    at = hanging;
                } else {
                    self.text.push(' ');
                    at += 1;
                }
            }
            self.text.push_str(word);
            at += length;
            first = false;
        }
        self.text.push('\n');
    }
}

/// The parts of a text between which a line may be broken: its words, and as one part what stands between backticks,
/// since that is a command.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c| {
        if c == '`' {
            quoted = !quoted;
        }
        c == ' ' && !quoted
    })
    .filter(|word| !word.is_empty())
}

/// Columns of a text, without escape sequences of the form `ESC [ ... m`.
pub fn width(text: &str) -> usize {
    let mut columns = 0;
    let mut escape = false;
    for c in text.chars() {
        match c {
            '\x1b' => escape = true,
            'm' if escape => escape = false,
            _ if escape => {}
            _ => columns += 1,
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::{Columns, Page, width};
    use crate::report::style::Palette;

    fn page(columns: usize, write: impl FnOnce(&mut Page)) -> String {
        let mut page = Page::new(Columns(columns));
        write(&mut page);
        page.into_text()
    }

    #[test]
    fn prose_hangs_below_its_first_word() {
        let text = page(20, |page| {
            page.labelled(1, "is: ", "one two three four five");
        });
        assert_eq!(text, " is: one two three\n     four five\n");
        // Exactly as long as the line.
        let text = page(20, |page| page.labelled(1, "is: ", "12345 789012345 4"));
        assert_eq!(text, " is: 12345 789012345\n     4\n");
    }

    #[test]
    fn a_long_label_leaves_room_for_its_text() {
        let text = page(20, |page| {
            page.labelled(1, "a long label: ", "one two three");
        });
        assert_eq!(text, " a long label: one\n   two three\n");
    }

    #[test]
    fn a_word_and_a_command_are_never_broken() {
        let long = "x".repeat(50);
        assert_eq!(
            page(40, |page| page.prose(0, &format!("a {long} b"))),
            format!("a\n{long}\nb\n")
        );
        let command = "qm set 101 --hostpci0 0000:0b:00.0,pcie=1";
        assert_eq!(
            page(20, |page| page.labelled_verbatim(2, "fix: ", command)),
            format!("  fix: {command}\n")
        );
    }

    #[test]
    fn a_command_between_backticks_stays_on_one_line() {
        let text = page(20, |page| {
            page.prose(0, "now run `qm start 101`, then wait");
        });
        assert_eq!(text, "now run\n`qm start 101`, then\nwait\n");
    }

    #[test]
    fn colours_take_no_room() {
        let painted = Palette::COLORED.bad("lost: it is");
        assert_eq!(width(&painted), 11);
        let plain = page(20, |page| page.prose(0, "lost: it is gone"));
        let colored = page(20, |page| page.prose(0, &format!("{painted} gone")));
        assert_eq!(plain.matches('\n').count(), colored.matches('\n').count());
    }

    #[test]
    fn the_width_stays_within_what_can_be_read() {
        assert_eq!(Columns::new(10).get(), 40);
        assert_eq!(Columns::new(72).get(), 72);
        assert_eq!(Columns::new(300).get(), 100);
    }

    #[test]
    fn gaps_do_not_add_up() {
        let text = page(40, |page| {
            page.gap();
            page.prose(0, "a");
            page.gap();
            page.gap();
            page.prose(0, "b");
        });
        assert_eq!(text, "a\n\nb\n");
    }
}
