//! Splits a command line as a POSIX shell with `$'…'` does, as far as printed commands may use it: anything that a shell
//! would expand, redirect or run is an error.

/// The words.
pub fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word) = (Vec::new(), None::<Vec<u8>>);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            ' ' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or("a quote is open")? {
                        '\'' => break,
                        c => push(word, c),
                    }
                }
            }
            '\\' => push(
                word.get_or_insert_default(),
                rest.next().ok_or("a backslash at the end")?,
            ),
            '$' if rest.peek() == Some(&'\'') => {
                rest.next();
                ansi(word.get_or_insert_default(), &mut rest)?;
            }
            c if c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c) => {
                push(word.get_or_insert_default(), c);
            }
            c => return Err(format!("{c:?} outside of quotes")),
        }
    }
    words.extend(word);
    words
        .into_iter()
        .map(|word| String::from_utf8(word).map_err(|error| error.to_string()))
        .collect()
}

/// What is between `$'` and `'`.
fn ansi(word: &mut Vec<u8>, rest: &mut impl Iterator<Item = char>) -> Result<(), String> {
    loop {
        match rest.next().ok_or("a quote is open")? {
            '\'' => return Ok(()),
            '\\' => match rest.next().ok_or("a backslash at the end")? {
                'x' => {
                    let digits: String = rest.by_ref().take(2).collect();
                    word.push(u8::from_str_radix(&digits, 16).map_err(|error| error.to_string())?);
                }
                c @ ('\'' | '\\') => push(word, c),
                c => return Err(format!("\\{c}")),
            },
            c => push(word, c),
        }
    }
}

fn push(word: &mut Vec<u8>, c: char) {
    word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
