//! A change of a file as a unified diff, for people.

use similar::{ChangeTag, TextDiff};

use super::escape;
use super::style::Palette;

/// Lines around each change.
const CONTEXT: usize = 3;

/// The unified diff of two versions of a file. Empty where they are equal.
///
/// Lines are shown like all text from files: what could move a cursor or is no UTF-8 is escaped, so the diff is for
/// reading, not for `patch`.
pub fn unified(name: &str, before: &[u8], after: &[u8], palette: Palette) -> String {
    if before == after {
        return String::new();
    }
    let (before, after) = (
        String::from_utf8_lossy(before),
        String::from_utf8_lossy(after),
    );
    let diff = TextDiff::from_lines(&before, &after);
    let mut text = format!(
        "{}\n{}\n",
        palette.head(&format!("--- {name}")),
        palette.head(&format!("+++ {name} (new)"))
    );
    for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
        text.push_str(&palette.faint(&hunk.header().to_string()));
        text.push('\n');
        for change in hunk.iter_changes() {
            let line = change.value().strip_suffix('\n');
            let shown = line_text(line.unwrap_or(change.value()));
            let shown = match change.tag() {
                ChangeTag::Equal => format!(" {shown}"),
                ChangeTag::Delete => palette.bad(&format!("-{shown}")),
                ChangeTag::Insert => palette.good(&format!("+{shown}")),
            };
            text.push_str(&shown);
            text.push('\n');
            if line.is_none() {
                text.push_str("\\ No newline at end of file\n");
            }
        }
    }
    text
}

/// A line made safe, with its tabs: those of Proxmox's own files are part of what people know.
fn line_text(line: &str) -> String {
    let parts: Vec<_> = line.split('\t').map(escape::text).collect();
    parts.join("\t")
}

#[cfg(test)]
mod tests {
    use super::{Palette, unified};

    #[test]
    fn shows_what_changes_with_its_surroundings() {
        let before = b"a\nb\nc\nd\nhostpci0: 0000:0b:00\ne\n";
        let after = b"a\nb\nc\nd\nhostpci0: 0000:0b:00.0\ne\n";
        assert_eq!(
            unified("101.conf", before, after, Palette::PLAIN),
            "--- 101.conf\n+++ 101.conf (new)\n@@ -2,5 +2,5 @@\n b\n c\n d\n-hostpci0: 0000:0b:00\n\
             +hostpci0: 0000:0b:00.0\n e\n"
        );
        assert_eq!(unified("x", before, before, Palette::PLAIN), "");
    }

    #[test]
    fn lines_from_the_file_forge_nothing() {
        let text = unified("x", b"\ta\x1b[2J\xff", b"b\r\n", Palette::PLAIN);
        assert!(
            text.contains("-\ta\\x1b[2J\u{fffd}\n\\ No newline at end of file\n+b\\x0d\n"),
            "{text}"
        );
    }
}
