//! Splitting a text into words as Perl's `Text::ParseWords::shellwords` does, which Proxmox uses for `args`.
//!
//! Words are separated by ASCII white space. Double quotes keep white space, and a backslash in them or outside quotes
//! makes the next character plain. Single quotes keep everything, backslashes included; yet a backslash hides the
//! quote after it, so `'\'` is unbalanced, unlike in a shell. There are no variables, comments or operators.

/// The words of a text. `None` where a quote is not closed or a backslash ends the text: Perl then returns no word at
/// all, not even those before.
pub fn shellwords(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if is_space(character) {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match character {
            '\\' => word.push(characters.next()?),
            '"' => loop {
                match characters.next()? {
                    '"' => break,
                    '\\' => word.push(characters.next()?),
                    other => word.push(other),
                }
            },
            '\'' => loop {
                match characters.next()? {
                    '\'' => break,
                    '\\' => {
                        word.push('\\');
                        word.push(characters.next()?);
                    }
                    other => word.push(other),
                }
            },
            other => word.push(other),
        }
    }
    words.extend(word);
    Some(words)
}

const fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

#[cfg(test)]
mod tests {
    use super::shellwords;

    /// What Perl 5.36 with `Text::ParseWords` 3.31 returned.
    #[test]
    fn as_perl_splits() {
        for (text, words) in [
            ("", Some(vec![])),
            ("  a  b ", Some(vec!["a", "b"])),
            ("a\tb\\ c", Some(vec!["a", "b c"])),
            ("a\"b c\"d", Some(vec!["ab cd"])),
            ("'a b' \"\" ''", Some(vec!["a b", "", ""])),
            (r#""a\"b\c""#, Some(vec![r#"a"bc"#])),
            (r"'a\b'", Some(vec![r"a\b"])),
            (r"'a\'b'", Some(vec![r"a\'b"])),
            (r"'a\'", None),
            ("a b\\", None),
            ("a \"b", None),
            ("a 'b", None),
            ("it's", None),
            ("a#b # c", Some(vec!["a#b", "#", "c"])),
            ("a\u{a0}b", Some(vec!["a\u{a0}b"])),
            ("\\\"a", Some(vec!["\"a"])),
        ] {
            let words = words.map(|words| words.into_iter().map(str::to_owned).collect());
            assert_eq!(shellwords(text), words, "{text}");
        }
    }
}
