//! `topology` on the example hosts and on made-up ones, as a black box.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::golden::{assert_fits, compare};
use crate::support::program::{bare, copy_of, example, program};
use crate::support::{HostTree, capture};

fn run(root: &Path, arguments: &[&str]) -> String {
    let output = program(root)
        .arg("topology")
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(error, "");
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(root: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(root, &[arguments, &["--format", "json"]].concat())).unwrap()
}

fn refused(root: &Path, arguments: &[&str]) -> String {
    let output = program(root)
        .arg("topology")
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

fn hosts(answer: &Value) -> Vec<&str> {
    answer["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|function| function["host"].as_str().unwrap())
        .collect()
}

/// The captured machine, on which every way to fail is to be seen.
fn lab() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    capture::unpack(directory.path());
    let write = |path: &str, text: &str| {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("etc/hostname", "lab\n");
    write("proc/sys/kernel/osrelease", "6.12.117+deb13-amd64\n");
    directory
}

#[test]
fn the_text_is_as_it_should_be() {
    for (name, host, arguments) in [
        ("x399", "x399-two-7900xt", &[][..]),
        ("x399-vm-101", "x399-two-7900xt", &["--vm", "101"]),
        ("b550", "b550-chipset-slot", &[]),
        ("b550-all", "b550-chipset-slot", &["--all"]),
        ("b550-vm-110", "b550-chipset-slot", &["--vm", "110"]),
        ("epyc", "epyc-instinct-sriov", &[]),
        ("epyc-vm-201", "epyc-instinct-sriov", &["--vm", "201"]),
    ] {
        let output = run(&example(host), arguments);
        assert_fits(name, &output);
        compare(&format!("topology/{name}.txt"), &output);
    }
    let lab = lab();
    let output = run(lab.path(), &["--all"]);
    assert_fits("lab", &output);
    compare("topology/lab-all.txt", &output);
}

#[test]
fn the_graph_is_as_it_should_be() {
    for (name, arguments) in [
        ("b550", &["--format", "dot"][..]),
        ("b550-vm-110", &["--vm", "110", "--format", "dot"]),
    ] {
        let output = run(&example("b550-chipset-slot"), arguments);
        compare(&format!("topology/{name}.dot"), &output);
        // Every quote is closed on its line, and every brace somewhere.
        for line in output.lines() {
            assert_eq!(
                line.replace("\\\\", "")
                    .replace("\\\"", "")
                    .matches('"')
                    .count()
                    % 2,
                0,
                "{line}"
            );
        }
        assert_eq!(output.matches('{').count(), output.matches('}').count());
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let root = example("b550-chipset-slot");
    for arguments in [&["--all"][..], &["--vm", "110"]] {
        let plain = run(&root, arguments);
        assert!(!plain.contains('\u{1b}'));
        let colored = run(&root, &[arguments, &["--color", "always"]].concat());
        assert!(
            colored.contains("\u{1b}[31m") || colored.contains("\u{1b}[1m\u{1b}[31m"),
            "{colored:?}"
        );
        let mut stripped = String::new();
        let mut rest = colored.as_str();
        while let Some((before, after)) = rest.split_once('\u{1b}') {
            stripped += before;
            rest = after.split_once('m').unwrap().1;
        }
        assert_eq!(stripped + rest, plain);
    }
}

#[test]
fn the_json_tells_what_the_measurements_told() {
    let lab = lab();
    let answer = json_of(lab.path(), &["--all"]);
    assert_eq!(
        (&answer["schema"], &answer["node"]),
        (&json!(1), &json!("lab"))
    );
    let got: BTreeMap<_, _> = answer["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|function| (function["host"].as_str().unwrap(), function))
        .collect();
    for (host, widths, reason, at) in [
        ("0000:03:00.0", json!([32, 64]), Value::Null, Value::Null),
        (
            "0000:04:00.0",
            json!([]),
            json!("switch-no-routing"),
            json!("0000:02:01.0"),
        ),
        (
            "0000:05:00.0",
            json!([]),
            json!("root-port-not-completer"),
            json!("0000:00:1c.1"),
        ),
        (
            "0000:0a:00.0",
            json!([]),
            json!("egress-blocked"),
            json!("0000:08:00.0"),
        ),
        (
            "0000:0b:00.0",
            json!([]),
            json!("no-devcap2"),
            json!("0000:0b:00.0"),
        ),
        ("0000:0c:10.0", json!([32]), Value::Null, Value::Null),
        (
            "0000:0e:01.0",
            json!([]),
            json!("not-pcie"),
            json!("0000:0e:01.0"),
        ),
        (
            "0000:10:00.1",
            json!([]),
            json!("endpoint-not-completer"),
            json!("0000:10:00.1"),
        ),
        (
            "0000:00:05.0",
            json!([]),
            json!("no-root-port"),
            json!("0000:00:05.0"),
        ),
    ] {
        let function = got[host];
        let found = (
            &function["host_widths"],
            &function["host_reason"],
            &function["host_denied_at"],
        );
        assert_eq!(found, (&widths, &reason, &at), "{host}");
    }
    assert_eq!(got["0000:0c:10.0"]["physfn"], "0000:0c:00.0");
    assert_eq!(
        got["0000:03:00.0"]["path"].as_array().map(Vec::len),
        Some(3)
    );
    // No bridge among them.
    assert!(!got.contains_key("0000:00:1c.0") && !got.contains_key("0000:0d:00.0"));
}

#[test]
fn functions_are_chosen_by_who_passes_them() {
    let root = example("x399-two-7900xt");
    let all_of_two = [
        "0000:0b:00.0",
        "0000:0b:00.1",
        "0000:44:00.0",
        "0000:44:00.1",
    ];
    let answer = json_of(&root, &[]);
    assert_eq!(hosts(&answer), all_of_two);
    let vmids = |at: usize| -> Vec<_> {
        let vms = answer["functions"][at]["vms"].as_array().unwrap();
        vms.iter()
            .map(|vm| (vm["vmid"].as_u64().unwrap(), vm["key"].as_str().unwrap()))
            .collect()
    };
    // The mapping of VM 103 counts.
    assert_eq!(
        vmids(0),
        [(101, "hostpci0"), (102, "hostpci0"), (103, "hostpci0")]
    );
    assert_eq!(vmids(1), [(101, "hostpci0"), (103, "hostpci0")]);
    let answer = json_of(&root, &["--vm", "104"]);
    assert_eq!(hosts(&answer), &all_of_two[2..]);
    assert_eq!(answer["vm"]["vmid"], 104);
    assert!(json_of(&root, &[]).get("vm").is_none());
}

#[test]
fn functions_can_be_named() {
    let root = example("x399-two-7900xt");
    assert_eq!(hosts(&json_of(&root, &["44:00.1"])), ["0000:44:00.1"]);
    assert_eq!(
        hosts(&json_of(&root, &["0000:44:00.1", "0b:00"])),
        ["0000:0b:00.0", "0000:0b:00.1", "0000:44:00.1"]
    );
    // By a bridge above.
    assert_eq!(
        hosts(&json_of(&root, &["0000:40:03.1"])),
        ["0000:44:00.0", "0000:44:00.1"]
    );
    assert_eq!(
        hosts(&json_of(&root, &["0a:00.0"])),
        ["0000:0b:00.0", "0000:0b:00.1"]
    );
    for word in ["0000:99:00.0", "44:00.", "44", "x\ny", ""] {
        let error = refused(&root, &[word]);
        assert!(
            error.starts_with("error: this host has no function '"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }
    assert!(refused(&root, &["--vm", "105"]).contains("there is no VM 105"));
}

#[test]
fn args_have_ports_of_their_own() {
    let tree = HostTree::named("pve1")
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu)
        .audio("0000:0b:00.1", |audio| audio)
        .vm(
            100,
            "machine: q35\nargs: -device pcie-root-port,id=rp1,bus=pcie.0,chassis=9,addr=8 \
             -device vfio-pci,host=0000:0b:00.0,bus=rp1,addr=0.0\n",
        );
    let output = run(tree.path(), &["--vm", "100"]);
    assert_fits("args", &output);
    compare("topology/args.txt", &output);
    let answer = json_of(tree.path(), &[]);
    assert_eq!(
        answer["functions"][0]["vms"],
        json!([{"vmid": 100, "key": "args"}])
    );
}

#[test]
fn unreadable_is_not_the_same_as_no() {
    let copy = copy_of(&example("x399-two-7900xt"));
    let port = copy
        .path()
        .join("sys/devices/pci0000:00/0000:00:03.1/config");
    let bytes = std::fs::read(&port).unwrap();
    std::fs::write(&port, &bytes[..64]).unwrap();
    let output = run(copy.path(), &["0b:00.0"]);
    assert_fits("header only", &output);
    assert!(
        output.contains("unknown") && output.contains("run as root"),
        "{output}"
    );
    assert!(
        !output.contains("<== blocks") && !output.contains("gets none"),
        "{output}"
    );
    let answer = json_of(copy.path(), &["0b:00.0"]);
    assert_eq!(answer["functions"][0]["host_reason"], "unreadable");
    assert_eq!(answer["functions"][0]["path"][0]["completer"], Value::Null);
}

#[test]
fn names_from_files_cannot_forge_lines() {
    let copy = copy_of(&example("x399-two-7900xt"));
    let ids = copy.path().join("usr/share/misc/pci.ids");
    let text = std::fs::read_to_string(&ids).unwrap();
    assert!(text.contains("Navi 31 [Radeon"));
    std::fs::write(
        &ids,
        text.replace("Navi 31 [Radeon", "\u{1b}[2J\u{202e}\"}; evil \\ [Radeon"),
    )
    .unwrap();
    for arguments in [
        &[][..],
        &["--vm", "101"],
        &["--format", "dot"],
        &["--format", "json"],
    ] {
        let output = run(copy.path(), arguments);
        assert!(
            !output.contains('\u{1b}') && !output.contains('\u{202e}'),
            "{output}"
        );
        assert!(output.contains("evil"));
    }
    let dot = run(copy.path(), &["--format", "dot"]);
    let line = dot.lines().find(|line| line.contains("evil")).unwrap();
    assert!(
        line.contains(r#"\"}; evil"#) && line.ends_with("];"),
        "{line}"
    );
}

#[test]
fn a_text_of_lspci_is_enough() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lspci.txt");
    let text = "\
00:03.1 PCI bridge: AMD GPP Bridge
\tBus: primary=00, secondary=0b, subordinate=0b, sec-latency=0
\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00
\t\t\t AtomicOpsCap: Routing- 32bit+ 64bit+ 128bitCAS-
\t\t\t AtomicOpsCtl: ReqEn- EgressBlck-
0b:00.0 VGA compatible controller: AMD/ATI Navi 31 (rev cc)
\tIOMMU group: 27
\tCapabilities: [64] Express (v2) Legacy Endpoint, MSI 00
\t\t\t AtomicOpsCap: 32bit+ 64bit+ 128bitCAS-
\t\t\t AtomicOpsCtl: ReqEn+
\tKernel driver in use: vfio-pci
0b:00.1 Audio device: AMD/ATI Navi 31 HDMI/DP Audio
\tCapabilities: <access denied>
";
    std::fs::write(&file, text).unwrap();
    let run = |file: &Path| {
        let output = bare()
            .arg("topology")
            .arg("--lspci")
            .arg(file)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = run(&file);
    assert_fits("lspci", &plain);
    compare("topology/lspci.txt", &plain);
    // Packed, as people attach it.
    let packed = directory.path().join("lspci.txt.gz");
    let mut gz = flate2::write::GzEncoder::new(
        std::fs::File::create(&packed).unwrap(),
        flate2::Compression::fast(),
    );
    std::io::Write::write_all(&mut gz, text.as_bytes()).unwrap();
    gz.finish().unwrap();
    assert_eq!(run(&packed), plain);
}
