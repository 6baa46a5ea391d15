//! The manual pages, as roff text: the program's from the command definitions, the policy file's from the text below.
//!
//! Words between backticks become bold. Pages hold no date and no version, so that they only change with what they say.

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::cli::Cli;
use crate::commands::undo::JOURNAL;
use crate::report::text::RATIONALE;
use crate::settings::{CLUSTER_FILE, NODE_FILE};
use crate::snippet;

/// The program's page, `pve-atomicops(1)`.
pub fn program() -> String {
    let command = Cli::command();
    let mut page = Page::new("pve-atomicops", "1");
    page.section("NAME");
    page.text(&format!(
        "pve-atomicops - {}",
        about(&command).trim_end_matches('.')
    ));
    page.section("SYNOPSIS");
    page.text("`pve-atomicops` [OPTIONS] COMMAND [ARGUMENTS]");
    page.section("DESCRIPTION");
    let long = command
        .get_long_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    for paragraph in long.split("\n\n").skip(1) {
        page.paragraph(paragraph);
    }
    page.section("OPTIONS");
    page.paragraph("These go with every command.");
    page.options(&command);
    page.section("COMMANDS");
    for subcommand in command.get_subcommands() {
        page.command(subcommand);
    }
    page.section("EXIT STATUS");
    for (status, meaning) in [
        ("0", "All is fine, or there was nothing to do."),
        (
            "1",
            "`check` and `verify`: a VM loses AtomicOps that its host could give, or does not show what was predicted. \
             `fix`: a loss stays. `hook` in pre-start: the start is refused on purpose.",
        ),
        (
            "2",
            "The command line, a configuration, or the run itself has an error.",
        ),
    ] {
        page.item(&format!("`{status}`"), meaning);
    }
    page.section("ENVIRONMENT");
    page.item(
        "`NO_COLOR`",
        "Set to anything: no colours, unless `--color always` asks for them.",
    );
    page.item(
        "`PATH`",
        "Where `qm` and `pvesh` are looked for, in its absolute directories.",
    );
    page.section("FILES");
    for (path, what) in [
        (
            CLUSTER_FILE,
            "The cluster's policy: see `pve-atomicops.toml`(5).",
        ),
        (NODE_FILE, "This node's policy."),
        (
            JOURNAL,
            "Edits of `fix`, `undo` and the hook, from which `undo` works.",
        ),
        (
            snippet::RECORD,
            "Where `attach` has put the snippet, with its SHA-256.",
        ),
        (snippet::SOURCE, "The snippet that `attach` copies."),
    ] {
        page.item(&format!("`{path}`"), what);
    }
    page.section("EXAMPLES");
    for (command, what) in [
        (
            "pve-atomicops check",
            "What every VM of this node gets, and what it loses.",
        ),
        (
            "pve-atomicops fix 101 --dry-run",
            "What would be changed in VM 101.",
        ),
        (
            "pve-atomicops fix 101 --strategy split",
            "Repairs VM 101 after asking, and keeps all functions of its cards in it.",
        ),
        (
            "pve-atomicops attach --all-gpu",
            "Has Proxmox call the hook at the start of every VM with two or more GPUs.",
        ),
    ] {
        page.item(&format!("`{command}`"), what);
    }
    page.section("SEE ALSO");
    page.text("`pve-atomicops.toml`(5), `qm`(1), `pvesh`(1)");
    page.paragraph("Why QEMU leaves the decision to management tools:");
    page.control("PP");
    page.control("nf");
    page.verbatim(RATIONALE);
    page.control("fi");
    page.render()
}

/// The policy file's page, `pve-atomicops.toml(5)`.
pub fn policy() -> String {
    let mut page = Page::new("pve-atomicops.toml", "5");
    page.section("NAME");
    page.text("pve-atomicops.toml - policy of pve-atomicops");
    page.section("SYNOPSIS");
    page.text(&format!("`{CLUSTER_FILE}`"));
    page.control("br");
    page.text(&format!("`{NODE_FILE}`"));
    page.section("DESCRIPTION");
    page.paragraph(
        "Says what the hook of `pve-atomicops`(1) does when a VM is about to lose AtomicOps that its host could give. \
         Both files are TOML, and neither has to exist.",
    );
    page.paragraph(&format!(
        "The built-in defaults come first, then the cluster's file `{CLUSTER_FILE}`, then this node's file \
         `{NODE_FILE}`, then the `[vm.VMID]` tables of both in the same order. What comes later wins, key by key."
    ));
    page.paragraph(
        "A file must belong to root, and nobody else may write to it. An unknown key, a value that does not fit or a file \
         that is not trusted is an error with the name of the file and the line. The hook then warns and goes on without \
         that file; it never refuses a start and never rewrites on its own account then.",
    );
    page.section("KEYS");
    for (key, default, meaning) in KEYS {
        page.item(&format!("`{key}`"), meaning);
        page.control("sp");
        page.text(&format!("Default: `{default}`"));
    }
    page.section("EXAMPLE");
    page.control("nf");
    for line in EXAMPLE.lines() {
        page.verbatim(line);
    }
    page.control("fi");
    page.section("SEE ALSO");
    page.text("`pve-atomicops`(1)");
    page.render()
}

/// Each key with its default and what it says.
const KEYS: [(&str, &str, &str); 10] = [
    (
        "mode",
        "\"warn\"",
        "What the hook does: `\"off\"` nothing at all; `\"warn\"` says it in the task log, with the command that repairs \
         it; `\"abort\"` says it and refuses the start; `\"rewrite\"` repairs the VM's configuration.",
    ),
    (
        "strategy",
        "\"explicit\"",
        "How a card that is passed with all its functions is repaired. `\"explicit\"`: only the function that needs \
         AtomicOps stays in the VM. `\"split\"`: the card's other functions move to hostpci entries of their own, and stay \
         in the VM. `\"auto\"`: split where enough entries are free, else explicit.",
    ),
    (
        "after_rewrite",
        "\"stop\"",
        "What follows a rewrite before a start. Proxmox has read the configuration by then, so the new one works from \
         the next start. `\"stop\"` refuses this start and asks to start again; `\"restart\"` refuses it and arranges a new \
         one; `\"continue\"` lets it go on with the old configuration.",
    ),
    (
        "devices",
        "\"gpu\"",
        "Which devices count: `\"gpu\"` (PCI classes 03, display controllers, and 12, processing accelerators) or \
         `\"any\"`.",
    ),
    (
        "min_gpus",
        "2",
        "How many such devices a VM must pass before anything is reported. AtomicOps matter between GPUs: one alone works \
         without them.",
    ),
    (
        "windows",
        "\"warn\"",
        "Guests with a Windows `ostype`: `\"warn\"` never rewrites them, since some of their drivers refuse a GPU without \
         its audio function; `\"skip\"` says nothing; `\"rewrite\"` treats them like any other guest.",
    ),
    (
        "chain",
        "[]",
        "Further hookscripts, run in this order with the same arguments: absolute paths or volume IDs. They and the \
         directories above them must belong to root and be writable by root alone. In pre-start the first that fails ends \
         the start. `pve-atomicops attach` puts a VM's former hookscript here.",
    ),
    ("syslog", "true", "Whether findings go to syslog as well."),
    (
        "timeout_s",
        "10",
        "Seconds after which the hook gives up its own work and lets the VM start: 1 to 3600. Scripts of the chain have no \
         limit.",
    ),
    (
        "verify",
        "false",
        "Whether the hook compares the running guest with its prediction once it has started, as `pve-atomicops verify` \
         does.",
    ),
];

const EXAMPLE: &str = "\
mode = \"warn\"

[vm.101]
mode = \"rewrite\"
strategy = \"split\"
chain = [\"local:snippets/network.sh\"]";

fn about(command: &clap::Command) -> String {
    command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// A page under construction.
struct Page {
    text: String,
}

impl Page {
    fn new(name: &str, section: &str) -> Self {
        let preamble = Roff::new().render();
        Self {
            // Date and version stay empty.
            text: format!("{preamble}.TH {name} {section} \"\" \"\" \"pve-atomicops\"\n"),
        }
    }

    fn render(self) -> String {
        self.text
    }

    fn add(&mut self, write: impl FnOnce(&mut Roff)) {
        let mut roff = Roff::new();
        write(&mut roff);
        // The definitions for apostrophes stand at the beginning of the page already.
        let rendered = roff.render();
        let preamble = Roff::new().render();
        self.text
            .push_str(rendered.strip_prefix(&preamble).unwrap_or(&rendered));
    }

    fn control(&mut self, name: &str) {
        self.add(|roff| {
            roff.control(name, []);
        });
    }

    fn section(&mut self, title: &str) {
        self.add(|roff| {
            roff.control("SH", [title]);
        });
    }

    fn text(&mut self, text: &str) {
        let inlines = inlines(text);
        self.add(|roff| {
            roff.text(inlines);
        });
    }

    fn verbatim(&mut self, line: &str) {
        let inlines = vec![roman(line)];
        self.add(|roff| {
            roff.text(inlines);
        });
    }

    fn paragraph(&mut self, text: &str) {
        self.control("PP");
        self.text(text);
    }

    fn item(&mut self, term: &str, text: &str) {
        self.control("TP");
        self.text(term);
        self.text(text);
    }

    /// One command: how it is called, what it does, its own options.
    fn command(&mut self, command: &clap::Command) {
        let name = format!("pve-atomicops {}", command.get_name());
        let usage = command
            .clone()
            .bin_name(&name)
            .disable_help_flag(true)
            .render_usage()
            .to_string();
        let usage = usage.trim_start_matches("Usage: ").replace('\n', " ");
        let words = usage.strip_prefix(&name).unwrap_or_default();
        self.add(|roff| {
            roff.control("SS", [command.get_name()]);
        });
        self.text(&format!("`{name}`{words}"));
        let long = command
            .get_long_about()
            .or_else(|| command.get_about())
            .map(ToString::to_string)
            .unwrap_or_default();
        for paragraph in long.split("\n\n") {
            self.paragraph(&format!("{}.", paragraph.trim_end_matches('.')));
        }
        self.options(command);
    }

    /// Options and arguments, as the generator writes them but without its heading.
    fn options(&mut self, command: &clap::Command) {
        let own = command
            .clone()
            .disable_help_flag(true)
            .disable_version_flag(true)
            .disable_help_subcommand(true);
        let mut section = Vec::new();
        // Writing to a vector cannot fail.
        let _ = Man::new(own).render_options_section(&mut section);
        let section = String::from_utf8_lossy(&section);
        let preamble = Roff::new().render();
        let section = section.strip_prefix(&preamble).unwrap_or(&section);
        let lines = section.lines().filter(|line| !line.starts_with(".SH"));
        for line in lines {
            self.text.push_str(&line.replace('`', ""));
            self.text.push('\n');
        }
    }
}

/// A text whose words between backticks are bold.
fn inlines(text: &str) -> Vec<Inline> {
    text.split('`')
        .enumerate()
        .filter(|(_, part)| !part.is_empty())
        .map(
            |(at, part)| {
                if at % 2 == 0 { roman(part) } else { bold(part) }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{EXAMPLE, KEYS, policy, program};
    use crate::settings::Policy;

    #[test]
    fn the_policy_page_knows_every_key_and_no_other() {
        // The error about an unknown key lists them all.
        let error = Policy::parse("x", "nonsense = 1").expect_err("unknown");
        let keys: Vec<_> = KEYS.iter().map(|(key, _, _)| *key).collect();
        assert!(
            error
                .problem
                .contains(&format!("the keys are {},", keys.join(", "))),
            "{error}"
        );
        for (key, default, _) in KEYS {
            Policy::parse("x", &format!("{key} = {default}")).expect(key);
        }
        Policy::parse("x", EXAMPLE).expect("the example");
    }

    #[test]
    fn defaults_are_those_of_the_program() {
        let lines: Vec<_> = KEYS
            .iter()
            .map(|(key, default, _)| format!("{key} = {default}"))
            .collect();
        let policy = Policy::parse("x", &lines.join("\n")).expect("defaults");
        let vmid = crate::vmconf::Vmid::new(100).expect("a VM ID");
        assert_eq!(
            crate::settings::resolve([&policy], vmid),
            crate::settings::Settings::default()
        );
    }

    #[test]
    fn pages_say_what_they_are_and_leave_no_markup() {
        for page in [program(), policy()] {
            assert!(page.contains(".TH pve-atomicops"), "{page}");
            assert!(!page.contains('`'), "{page}");
        }
        for command in ["fix", "attach", "check", "hook"] {
            assert!(program().contains(&format!(".SS {command}\n")), "{command}");
        }
    }
}
