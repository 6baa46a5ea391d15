//! Proxmox's section files: `mapping/pci.cfg`, `storage.cfg`, `ha/resources.cfg`.
//!
//! A *section* is a header line in column one and, below it, indented `key value` lines up to an empty line. What does
//! not fit is passed over with a warning, like `PVE::SectionConfig::parse_config` (pve-common 9.2) does it, so that
//! no content can make reading fail. Two rules of that reader are easy to get wrong: only an *empty* line ends a
//! section, one with blanks does not, and neither does the next header; and lines whose first character is `#` count
//! as if they were not there.
//!
//! It does not know which keys a file may have.

use super::property_string::is_space;

/// Something in a section file that does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The line's number, from 1.
    pub line: usize,
    /// The section, where the line is in one.
    pub section: Option<String>,
    /// What is wrong, in one line. Control characters of the file are still in it.
    pub text: String,
}

/// One section, as written.
#[derive(Debug)]
pub(super) struct RawSection<'a, H> {
    /// The number of the header line.
    pub line: usize,
    pub header: H,
    /// The settings in order; no key is checked, and any may be there twice.
    pub settings: Vec<Setting<'a>>,
}

/// One `key value` line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub line: usize,
    pub key: &'a str,
    /// The value; some keys, such as `disable`, have none.
    pub value: Option<&'a str>,
}

/// What a header line is.
pub(super) enum HeaderLine<H> {
    /// Not a header.
    No,
    /// A header.
    Yes(H),
    /// A header of a section that does not count; its name, and why.
    Skip(String, String),
}

/// Reads the sections and what the reader itself warns about.
pub(super) fn read<'a, H>(
    text: &'a str,
    header: impl Fn(&'a str) -> HeaderLine<H>,
    name: impl Fn(&H) -> String,
) -> (Vec<RawSection<'a, H>>, Vec<Warning>) {
    enum Place<'a, H> {
        Outside,
        Inside(RawSection<'a, H>),
        Skipping,
    }

    let mut sections = Vec::new();
    let mut warnings = Vec::new();
    let mut place = Place::Outside;
    for (index, content) in text.split('\n').enumerate() {
        let line = index + 1;
        if trim_start(content).starts_with('#') {
            continue;
        }
        // Perl's false: the reader stops at a line `0`, too.
        let ends = content.is_empty() || content == "0";
        place = match place {
            Place::Outside | Place::Skipping if ends => Place::Outside,
            Place::Outside => match header(content) {
                HeaderLine::Yes(header) => Place::Inside(RawSection {
                    line,
                    header,
                    settings: Vec::new(),
                }),
                HeaderLine::Skip(section, reason) => {
                    warnings.push(Warning {
                        line,
                        text: format!("skip section '{section}': {reason}"),
                        section: Some(section),
                    });
                    Place::Skipping
                }
                HeaderLine::No => {
                    warnings.push(ignored(line, None, content));
                    Place::Outside
                }
            },
            Place::Skipping => Place::Skipping,
            Place::Inside(section) if ends => {
                sections.push(section);
                Place::Outside
            }
            Place::Inside(mut section) => {
                match setting(content) {
                    Some((key, value)) => section.settings.push(Setting { line, key, value }),
                    None => warnings.push(ignored(line, Some(name(&section.header)), content)),
                }
                Place::Inside(section)
            }
        };
    }
    if let Place::Inside(section) = place {
        sections.push(section);
    }
    (sections, warnings)
}

fn ignored(line: usize, section: Option<String>, content: &str) -> Warning {
    let excerpt: String = content.chars().take(200).collect();
    let more = if excerpt.len() < content.len() {
        "..."
    } else {
        ""
    };
    Warning {
        line,
        section,
        text: format!("ignore config line: {excerpt}{more}"),
    }
}

/// `^\s+(\S+)(\s+(.*\S))?\s*$`.
fn setting(content: &str) -> Option<(&str, Option<&str>)> {
    let indented = trim_start(content);
    if indented.len() == content.len() || indented.is_empty() {
        return None;
    }
    match indented.find(is_space_char) {
        Some(end) => {
            let (key, rest) = indented.split_at_checked(end)?;
            let value = rest.trim_matches(is_space_char);
            Some((key, (!value.is_empty()).then_some(value)))
        }
        None => Some((indented, None)),
    }
}

/// `^(\S+):\s*(\S+)\s*$`: the type and the name. The last colon that works is the one that counts.
pub(super) fn type_and_name(content: &str) -> Option<(&str, &str)> {
    let content = content.trim_end_matches(is_space_char);
    match content.rfind(is_space_char) {
        // White space comes right after the colon, and nowhere else.
        Some(last_space) => {
            let name = content.get(last_space + 1..)?;
            let head = content.get(..last_space)?.trim_end_matches(is_space_char);
            let kind = head.strip_suffix(':')?;
            (!kind.is_empty() && !kind.contains(is_space_char)).then_some((kind, name))
        }
        None => content
            .rmatch_indices(':')
            .map(|(at, _)| (content.get(..at), content.get(at + 1..)))
            .find_map(|(kind, name)| {
                let (kind, name) = (kind?, name?);
                (!kind.is_empty() && !name.is_empty()).then_some((kind, name))
            }),
    }
}

fn is_space_char(c: char) -> bool {
    u8::try_from(c).is_ok_and(is_space)
}

pub(super) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space_char)
}

fn trim_start(text: &str) -> &str {
    text.trim_start_matches(is_space_char)
}

pub(super) fn has_space(text: &str) -> bool {
    text.contains(is_space_char)
}

#[cfg(test)]
mod tests {
    use super::{HeaderLine, read, setting, type_and_name};

    fn sections(text: &str) -> (Vec<(String, Vec<String>)>, Vec<usize>) {
        let (sections, warnings) = read(
            text,
            |line| match type_and_name(line) {
                Some((_, "bad")) => HeaderLine::Skip("bad".to_owned(), "because".to_owned()),
                Some((_, name)) => HeaderLine::Yes(name),
                None => HeaderLine::No,
            },
            |name| (*name).to_owned(),
        );
        let sections = sections
            .iter()
            .map(|section| {
                let keys = section
                    .settings
                    .iter()
                    .map(|setting| setting.key.to_owned());
                (section.header.to_owned(), keys.collect())
            })
            .collect();
        let lines = warnings.iter().map(|warning| warning.line).collect();
        (sections, lines)
    }

    #[test]
    fn only_an_empty_line_ends_a_section() {
        let (found, warnings) = sections("t: a\n\tx 1\n \n\n#c\nt: b\n  # c\n\ty\nt: c\n\tz 2\n");
        assert_eq!(
            found,
            [
                ("a".to_owned(), vec!["x".to_owned()]),
                ("b".to_owned(), vec!["y".to_owned(), "z".to_owned()]),
            ]
        );
        assert_eq!(warnings, [3, 9]);
    }

    #[test]
    fn skipped_sections_and_stray_lines_are_named() {
        let (found, warnings) = sections("stray\n\nt: bad\n\tx 1\nanything\n\nt: good");
        assert_eq!(found, [("good".to_owned(), vec![])]);
        assert_eq!(warnings, [1, 3]);
    }

    #[test]
    fn settings_and_headers() {
        assert_eq!(setting("\tkey  a b \r"), Some(("key", Some("a b"))));
        assert_eq!(setting(" key "), Some(("key", None)));
        assert_eq!(setting("key a"), None);
        assert_eq!(setting("  "), None);
        assert_eq!(type_and_name("dir: local \r"), Some(("dir", "local")));
        assert_eq!(type_and_name("dir:local"), Some(("dir", "local")));
        assert_eq!(type_and_name("a:b: c"), Some(("a:b", "c")));
        assert_eq!(type_and_name("a:b:"), Some(("a", "b:")));
        for bad in ["dir : local", " dir: local", "dir: a b", "dir:", ": a", "a"] {
            assert_eq!(type_and_name(bad), None, "{bad}");
        }
    }
}
