//! `check` on the example hosts and on made-up ones, as a black box.

use serde_json::{Value, json};

use crate::support::HostTree;
use crate::support::program::{example, program};

/// The JSON answer, and the exit status.
fn check(root: &std::path::Path, arguments: &[&str]) -> (Value, i32) {
    let output = program(root).arg("check").args(arguments).args(["--format", "json"]).output();
    let output = output.expect("the program runs");
    let status = output.status.code().expect("it ends by itself");
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    (json, status)
}

fn text(root: &std::path::Path, arguments: &[&str]) -> String {
    let output = program(root).arg("check").args(arguments).output().expect("the program runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn both_cards_of_vm_101_are_lost() {
    let (report, status) = check(&example("x399-two-7900xt"), &["101"]);
    assert_eq!(status, 1);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["node"], "pve1");
    assert_eq!(report["kernel"], "6.17.2-1-pve");
    assert_eq!(report["qemu"], json!({"version": "11.0.2", "guard": "single-function", "verified": true}));
    let vm = &report["vms"][0];
    assert_eq!(vm["verdict"], "lost");
    assert_eq!(vm["reported"], true);
    assert_eq!(vm["skipped"], Value::Null);
    for (at, slot) in [(0, "0000:0b:00"), (1, "0000:44:00")] {
        let entry = &vm["entries"][at];
        assert_eq!(entry["key"], format!("hostpci{at}"));
        assert_eq!(entry["form"], "all-functions");
        assert_eq!(entry["verdict"], "lost");
        assert_eq!(entry["reason"], "multifunction");
        assert_eq!(entry["guest_port"], format!("ich9-pcie-port-{}", at + 1));
        assert_eq!(entry["guest_widths"], json!([]));
        assert_eq!(entry["possible_widths"], json!([32, 64]));
        assert_eq!(entry["fix"]["strategy"], "explicit");
        assert_eq!(entry["fix"]["set"][format!("hostpci{at}")], format!("{slot}.0,pcie=1"));
        assert_eq!(entry["fix"]["commands"], json!([format!("qm set 101 --hostpci{at} {slot}.0,pcie=1")]));
        let functions = &entry["alternatives"][0]["functions"];
        assert_eq!(functions.as_array().map(Vec::len), Some(2));
        assert_eq!(functions[0]["host_widths"], json!([32, 64]));
        assert_eq!(functions[0]["guest"]["multifunction"], true);
        assert_eq!(functions[1]["guest"]["function"], 1);
        // A root port's own routing bit is about peers; `Routing-` there is healthy.
        let port = &functions[0]["path"][0];
        assert_eq!((&port["type"], &port["routing"]), (&json!("root-port"), &json!(false)));
        assert_eq!(port["completer"], json!([32, 64]));
    }
}

#[test]
fn explicit_is_ok_a_mapping_is_resolved_and_one_gpu_is_not_reported() {
    let root = example("x399-two-7900xt");
    let (report, status) = check(&root, &["102"]);
    assert_eq!((status, &report["vms"][0]["verdict"]), (0, &json!("ok")));
    for entry in report["vms"][0]["entries"].as_array().expect("entries") {
        assert_eq!(entry["guest_widths"], json!([32, 64]));
        assert_eq!(entry["fix"], Value::Null);
    }

    let (report, status) = check(&root, &["103"]);
    assert_eq!(status, 1);
    let entry = &report["vms"][0]["entries"][0];
    assert_eq!((&entry["form"], &entry["verdict"]), (&json!("mapping"), &json!("lost")));
    assert_eq!(entry["fix"]["strategy"], "mapping");
    assert_eq!(entry["fix"]["set"], json!({}));
    let command = entry["fix"]["commands"][0].as_str().expect("a command");
    assert!(command.starts_with("pvesh set /cluster/mapping/pci/"), "{command}");
    assert!(command.contains("path=0000:0b:00.0"), "{command}");

    let (report, status) = check(&root, &["104"]);
    let vm = &report["vms"][0];
    assert_eq!((status, &vm["verdict"], &vm["reported"]), (1, &json!("lost"), &json!(false)));
    assert!(vm["skipped"].as_str().expect("a reason").contains("min_gpus"), "{vm}");
}

#[test]
fn a_switch_that_does_not_route_is_named_and_nothing_is_offered() {
    let root = example("b550-chipset-slot");
    let (report, _) = check(&root, &[]);
    let entries = report["vms"].as_array().expect("VMs").iter().flat_map(|vm| vm["entries"].as_array().expect("entries"));
    let unavailable: Vec<_> = entries.filter(|entry| entry["verdict"] == "unavailable").collect();
    assert!(!unavailable.is_empty());
    for entry in unavailable {
        assert_eq!(entry["fix"], Value::Null);
        let subject = &entry["subject"];
        let functions = entry["alternatives"][0]["functions"].as_array().expect("functions");
        let function = functions.iter().find(|function| &function["host"] == subject).expect("the subject");
        assert_eq!(function["host_reason"], "switch-no-routing");
        let blocker = function["host_denied_at"].as_str().expect("an address");
        let port = function["path"].as_array().expect("a path").iter().find(|port| port["addr"] == blocker);
        assert_eq!(port.expect("the port is on the path")["routing"], false);
        assert!(text(&root, &[]).contains(&format!("{blocker}, a downstream switch port, does not route")), "{}", text(&root, &[]));
    }
}

#[test]
fn the_functions_of_one_card_are_intersected() {
    let tree = HostTree::new();
    let tree = crate::support::program::card_whose_functions_differ(tree);
    let (report, _) = check(tree.path(), &["100"]);
    let entry = &report["vms"][0]["entries"][0];
    assert_eq!(entry["verdict"], "lost");
    assert_eq!(entry["possible_widths"], json!([32, 64, 128]));
    assert_eq!(entry["intersection_widths"], json!([32, 64]));
    let (report, _) = check(&example("x399-two-7900xt"), &["102"]);
    assert_eq!(report["vms"][0]["entries"][0]["intersection_widths"], Value::Null);
}

#[test]
fn lines_that_proxmox_drops_and_refusals_are_told() {
    let root = example("x399-two-7900xt");
    let tree = crate::support::program::copy_of(&root);
    tree.write_vm(200, "machine: q35\nhostpci0: 0000:0b:00,pcie=1,nonsense=1\nhostpci1: 0000:44:00,pcie=1\n");
    tree.write_vm(201, "machine: q35\nhostpci0: 0000:ee:00,pcie=1\n");
    let (report, _) = check(tree.path(), &["200", "201"]);
    let vm = &report["vms"][0];
    assert_eq!((&vm["verdict"], &vm["start_error"]), (&json!("error"), &Value::Null));
    assert_eq!(vm["entries"][0]["dropped"], true);
    assert!(vm["entries"][0]["error"].as_str().is_some_and(|error| error.contains("nonsense")), "{vm}");
    assert_eq!(vm["entries"][1]["verdict"], "lost");
    assert_eq!(vm["dropped_lines"][0]["line"], 2);
    let vm = &report["vms"][1];
    assert_eq!(vm["entries"][0]["dropped"], false);
    assert_eq!(vm["start_error"], "hostpci0: no PCI device found for '0000:ee:00'");
}

#[test]
fn errors_say_what_to_do() {
    let root = example("x399-two-7900xt");
    let run = |arguments: &[&str]| {
        let output = program(&root).args(arguments).output().expect("the program runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    assert_eq!(
        run(&["check", "105"]),
        (Some(2), "error: there is no VM 105 on this node; the nearest IDs are 102, 103, 104\n".to_owned())
    );
    let (status, error) = run(&["check", "one"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("is not a VM ID"), "{error}");
    let (status, error) = run(&["--config", "/nonexistent.toml", "check"]);
    assert_eq!((status, error.as_str()), (Some(2), "error: /nonexistent.toml: no such file\n"));
}
