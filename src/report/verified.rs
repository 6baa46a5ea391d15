//! What `verify` found, for people: at a terminal and in syslog.

use super::escape;
use super::text::{Style, widths_words};
use super::wrap::Page;
use crate::pci::Widths;
use crate::verdict::Verdict;
use crate::verify::compare::{Comparison, Entry, Function, Port, Source};

/// The longest name that is printed in one place, in characters.
const LONGEST: usize = 120;

/// The answer at a terminal.
pub fn text(comparison: &Comparison, style: Style) -> String {
    let palette = style.palette;
    let mut page = Page::new(style.columns);
    let result = match (comparison.agrees, comparison.loses()) {
        (false, _) => palette.bad("differs from the prediction"),
        (true, true) => palette.bad("as predicted, and AtomicOps are lost"),
        (true, false) => palette.good("as predicted"),
    };
    let title = palette.head(&format!("VM {}", comparison.vmid));
    match (&comparison.qemu, &comparison.status) {
        (Some(qemu), Some(status)) => {
            page.prose(
                0,
                &format!(
                    "{title}, QEMU {}, {}: {result}",
                    escape::short(qemu, 40),
                    escape::short(status, 40)
                ),
            );
        }
        _ => page.prose(0, &format!("{title}: {NO_EXPRESS}")),
    }
    if comparison.predicted_from == Source::Config {
        page.prose(
            2,
            "The command line of its QEMU cannot be read: predicted from the configuration as it is now.",
        );
    }
    for change in &comparison.config_changed {
        let label = format!(
            "{} ",
            palette.doubt("configuration changed since the start:")
        );
        page.labelled(2, &label, &escape::text(change));
    }
    for port in comparison.ports.iter().filter(|port| is_of_interest(port)) {
        let words = port_words(port);
        page.prose(
            2,
            &if port.agrees == Some(false) {
                palette.bad(&words)
            } else {
                words
            },
        );
        match &port.functions {
            Some(functions) => functions.iter().for_each(|function| {
                page.prose(4, &function_words(function));
            }),
            None => page.prose(
                4,
                "firmware has not numbered it, so what is behind is not seen",
            ),
        }
    }
    for function in comparison
        .elsewhere
        .iter()
        .filter(|function| function.host.is_some())
    {
        page.prose(2, "without a root port above:");
        page.prose(4, &function_words(function));
    }
    for entry in &comparison.entries {
        if entry.verdict == Verdict::Lost {
            let label = format!("{} ", palette.bad("lost:"));
            page.labelled(2, &label, &loss_words(entry));
        }
    }
    page.into_text()
}

const NO_EXPRESS: &str = "its machine is no q35 and has no PCI Express: there is no root port that could be read, or that \
                          could show AtomicOps";

/// The answer for syslog: the result in one line, then one for each difference and loss.
pub fn lines(comparison: &Comparison) -> Vec<String> {
    let mut ports: Vec<_> = comparison
        .ports
        .iter()
        .filter(|port| is_of_interest(port))
        .map(|port| format!("{} {}", name(port), port.read))
        .collect();
    if ports.is_empty() {
        ports.push("no passed device behind a root port".to_owned());
    }
    let ports = ports.join(", ");
    let mut lines = vec![if !comparison.pci_express {
        NO_EXPRESS.to_owned()
    } else if comparison.agrees {
        format!("as predicted: {ports}")
    } else {
        format!("differs from the prediction: {ports}")
    }];
    let different = comparison.ports.iter();
    lines.extend(
        different
            .filter(|port| port.agrees == Some(false))
            .map(port_words),
    );
    let lost = comparison.entries.iter();
    lines.extend(
        lost.filter(|entry| entry.verdict == Verdict::Lost)
            .map(|entry| format!("lost: {}", loss_words(entry))),
    );
    lines
}

/// Empty ports that advertise nothing are not worth a line.
fn is_of_interest(port: &Port) -> bool {
    let passes = port.functions.iter().flatten();
    port.agrees != Some(true)
        || !port.read.is_empty()
        || passes.clone().any(|function| function.host.is_some())
}

fn name(port: &Port) -> String {
    if port.port.is_empty() {
        port.address.clone()
    } else {
        escape::short(&port.port, LONGEST)
    }
}

fn widths(widths: Widths) -> String {
    if widths.is_empty() {
        "no AtomicOps".to_owned()
    } else {
        format!("AtomicOps of {}", widths_words(widths))
    }
}

fn port_words(port: &Port) -> String {
    let read = format!(
        "{} at {} shows {}",
        name(port),
        port.address,
        widths(port.read)
    );
    let uncertain = port.uncertain.as_deref().unwrap_or_default();
    match (port.agrees, port.predicted) {
        (Some(true), _) => format!("{read}, as predicted"),
        (_, Some(predicted)) if port.agrees.is_none() => format!(
            "{read}; predicted {}, which is not certain: {}",
            widths(predicted),
            escape::text(uncertain)
        ),
        (_, Some(predicted)) => format!("{read}; predicted {}", widths(predicted)),
        (_, None) => format!("{read}; not predicted: {}", escape::text(uncertain)),
    }
}

fn function_words(function: &Function) -> String {
    let id = if function.id.is_empty() {
        "a device"
    } else {
        &function.id
    };
    let mut words = format!("{} at {}", escape::short(id, LONGEST), function.guest);
    if !function.direct {
        words += ", not right below a root port";
    }
    words += match function.requester_enabled {
        Some(true) => ": the guest's driver took the offer (requester enable is set in the guest)",
        Some(false) => {
            ": the guest's driver has not taken an offer (requester enable is clear in the guest)"
        }
        None => ": no requester enable in the guest",
    };
    if let (Some(host), Some(host_widths)) = (&function.host, function.host_widths) {
        let enabled = match function.host_requester_enabled {
            Some(true) => "set",
            Some(false) => "clear",
            None => "not there",
        };
        words += &format!(
            "; host {host} offers {}, requester enable is {enabled} there",
            widths_words(host_widths)
        );
    }
    words
}

fn loss_words(entry: &Entry) -> String {
    format!(
        "{}: the host offers {} for {}, the running guest sees {}",
        escape::short(&entry.key, LONGEST),
        widths_words(entry.host_widths),
        entry.host,
        widths_words(entry.guest_widths)
    )
}
