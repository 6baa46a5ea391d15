//! Asking before something is changed.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::{Context as _, bail};

/// Whether a person agrees. Anything but `y` or `yes` is a no, the end of input too.
///
/// # Errors
/// Standard input is no terminal: what comes from a pipe was not written as an answer to this question.
pub fn agreed(question: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!(
            "nobody can be asked, since standard input is no terminal: add --yes to make the change, or --dry-run to \
             only see it"
        );
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{question} [y/N] ")
        .and_then(|()| out.flush())
        .context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    if answer.is_empty() {
        // No line end came with it.
        super::print("\n")?;
    }
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::is_yes;

    #[test]
    fn only_a_yes_is_a_yes() {
        for yes in ["y\n", "Y\n", " yes \n", "YES"] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "no\n", "yy\n", "yes please\n"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }
}
