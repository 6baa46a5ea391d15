//! `capture`, and archives in place of a root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pve_atomicops::archive::{Node, Tree};
use pve_atomicops::host::{Access, Host};
use pve_atomicops::pci::Registers;
use serde_json::Value;

use crate::support::capture as lab;
use crate::support::program::{Copy, bare, copy_of, example, program};

const EXAMPLES: [&str; 3] = [
    "x399-two-7900xt",
    "b550-chipset-slot",
    "epyc-instinct-sriov",
];

fn run(mut command: Command, arguments: &[&str]) -> Output {
    command.args(arguments).output().unwrap()
}

/// Captures a root into a file of `directory`.
fn capture(root: &Path, directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name);
    let output = program(root)
        .arg("capture")
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    file
}

fn unpack(file: &Path) -> Tree {
    Tree::unpack(fs::File::open(file).unwrap()).unwrap()
}

/// All names and contents in one heap.
fn heap(tree: &Tree) -> Vec<u8> {
    let mut heap = Vec::new();
    for (path, node) in tree.iter() {
        heap.extend_from_slice(path.as_bytes());
        heap.push(b'\n');
        match node {
            Node::File(bytes) => heap.extend_from_slice(bytes),
            Node::Link(target) => heap.extend_from_slice(target.as_bytes()),
            Node::Directory => {}
        }
        heap.push(b'\n');
    }
    heap
}

fn contains(heap: &[u8], text: &str) -> bool {
    heap.windows(text.len())
        .any(|window| window == text.as_bytes())
}

fn json(root: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = run(program(root), &[arguments, &["--format", "json"]].concat());
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), value)
}

fn without_names(mut report: Value) -> Value {
    for vm in report["vms"].as_array_mut().unwrap() {
        vm["name"] = Value::Null;
    }
    report
}

#[test]
fn a_replayed_capture_gives_the_same_answers() {
    let directory = tempfile::tempdir().unwrap();
    for name in EXAMPLES {
        let root = example(name);
        let file = capture(&root, directory.path(), name);
        let (status, expected) = json(&root, &["check"]);
        let (replayed, got) = json(&file, &["check"]);
        assert_eq!((replayed, got), (status, without_names(expected)), "{name}");
        assert_eq!(
            json(&file, &["topology"]),
            json(&root, &["topology"]),
            "{name}"
        );
        // From the unpacked archive too, by tar and not by us.
        let unpacked = directory.path().join(format!("{name}-unpacked"));
        fs::create_dir(&unpacked).unwrap();
        let tar = Command::new("tar")
            .arg("xzf")
            .arg(&file)
            .arg("-C")
            .arg(&unpacked)
            .status()
            .unwrap();
        assert!(tar.success());
        assert_eq!(
            json(&unpacked, &["check"]),
            json(&file, &["check"]),
            "{name}"
        );
        // And a capture of the capture is the capture.
        let again = capture(&file, directory.path(), &format!("{name}-again"));
        assert_eq!(
            fs::read(&again).unwrap(),
            fs::read(&file).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn the_same_host_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let copy = copy_of(&example("x399-two-7900xt"));
    let first = capture(copy.path(), directory.path(), "first");
    let second = capture(copy.path(), directory.path(), "second");
    assert_eq!(fs::read(&first).unwrap(), fs::read(second).unwrap());
    assert_eq!(
        fs::read(capture(
            &example("x399-two-7900xt"),
            directory.path(),
            "third"
        ))
        .unwrap(),
        fs::read(&first).unwrap()
    );
    assert!(fs::read(&first).unwrap().len() < 16 << 10);
}

/// What a configuration may hold that is nobody's business, each with a mark of its own.
fn plant(copy: &Copy) -> Vec<String> {
    let mark = |what: &str| format!("planted-{what}-7d1f");
    copy.write_vm(
        101,
        format!(
            "#{} %0A{}\n\
             args: -fw_cfg name=opt/x,string={} -device pcie-root-port,id=rp9,bus=pcie.0 -smbios type=1,serial={} \
             -device virtio-net-pci,bus=rp9,mac={} -drive file={}\n\
             cicustom: user=local:snippets/{}\n\
             cipassword: {}\n\
             ciuser: {}\n\
             description: {}\n\
             efidisk0: {}:vm-101-disk-0\n\
             hostpci0: 0000:0b:00,pcie=1\n\
             ipconfig0: ip={}\n\
             machine: q35\n\
             memory: 4096\n\
             name: {}\n\
             net0: virtio=BC:24:11:7D:1F:01,bridge=vmbr0\n\
             ostype: l26 {}\n\
             searchdomain: {}\n\
             smbios1: uuid=0f3c1f3e-{}\n\
             sshkeys: ssh-ed25519%20{}\n\
             tags: {}\n\
             vmgenid: {}\n\
             nonsense {}\n\
             \n[special:cloudinit]\ncipassword: {}\n\
             \n[PENDING]\nname: {}\ndelete: {}\n\
             \n[snap-{}]\n#{}\nhostpci0: 0000:0b:00\nargs: -x {}\n",
            mark("comment"), mark("encoded"), mark("fwcfg"), mark("serial"), mark("mac"), mark("drive"), mark("cicustom"),
            mark("cipassword"), mark("ciuser"), mark("description"), mark("storage"), mark("ip"), mark("name"), mark("ostype"),
            mark("domain"), mark("uuid"), mark("sshkey"), mark("tag"), mark("genid"), mark("nonsense"), mark("special"),
            mark("pending"), mark("delete"), mark("snapshot"), mark("snapcomment"), mark("snapargs"),
        ),
    );
    copy.write("etc/pve/mapping/pci.cfg", format!(
        "# {}\ngpu0\n\tdescription {}\n\tmap id=1002:744c,iommugroup=27,node=pve1,path=0000:0b:00,subsystem-id=1da2:e471\n",
        mark("mapcomment"), mark("mapdescription"),
    ));
    copy.write(
        "etc/pve/atomicops.toml",
        format!(
            "# {}\nmode = \"warn\" # {}\n",
            mark("policy"),
            mark("policy2")
        ),
    );
    copy.write(
        "etc/pve/storage.cfg",
        format!("dir: {}\n", mark("storages")),
    );
    copy.write("etc/pve/user.cfg", mark("users"));
    copy.write("etc/pve/priv/shadow.cfg", mark("shadow"));
    copy.write(
        "etc/pve/ha/resources.cfg",
        format!("vm: 101\n\tcomment {}\n", mark("ha")),
    );
    copy.write(
        "sys/devices/pci0000:00/0000:00:03.1/0000:09:00.0/0000:0a:00.0/0000:0b:00.0/serial",
        mark("sysfs"),
    );
    let mut config = fs::read(copy.path().join("sys/bus/pci/devices/0000:0b:00.0/config")).unwrap();
    config.resize(4096, 0);
    // Where nothing is read: behind the capability, and in extended space, where the serial number is.
    let planted = mark("config");
    config[0xe0..0xe0 + planted.len()].copy_from_slice(planted.as_bytes());
    config[0x150..0x150 + planted.len()].copy_from_slice(planted.as_bytes());
    copy.write(
        "sys/devices/pci0000:00/0000:00:03.1/0000:09:00.0/0000:0a:00.0/0000:0b:00.0/config",
        config,
    );
    let mut status = fs::read_to_string(copy.path().join("var/lib/dpkg/status")).unwrap();
    status += &format!(
        "\nPackage: {}\nStatus: install ok installed\nVersion: 1\n",
        mark("package")
    );
    copy.write("var/lib/dpkg/status", status);
    vec![
        "planted-".to_owned(),
        "-7d1f".to_owned(),
        "BC:24:11".to_owned(),
        "snap-".to_owned(),
        "0f3c1f3e".to_owned(),
    ]
}

#[test]
fn no_planted_secret_is_in_the_archive() {
    let copy = copy_of(&example("x399-two-7900xt"));
    let before = json(copy.path(), &["check", "102", "104"]);
    let planted = plant(&copy);
    let directory = tempfile::tempdir().unwrap();
    // The searched words are there to be found.
    let everywhere: Vec<u8> = [
        "etc/pve/qemu-server/101.conf",
        "etc/pve/mapping/pci.cfg",
        "etc/pve/atomicops.toml",
    ]
    .iter()
    .flat_map(|path| fs::read(copy.path().join(path)).unwrap())
    .collect();
    let file = capture(copy.path(), directory.path(), "capture");
    let heap = heap(&unpack(&file));
    for text in planted {
        assert!(contains(&everywhere, &text), "{text} was not planted");
        assert!(!contains(&heap, &text), "{text} is in the archive");
    }
    // What matters still is.
    for text in [
        "hostpci0: 0000:0b:00,pcie=1",
        "driver=pcie-root-port",
        "iommugroup=27",
        "mode = \"warn\"",
        "gpu0",
    ] {
        assert!(contains(&heap, text), "{text} is not in the archive");
    }
    assert_eq!(
        without_names(json(copy.path(), &["check"]).1),
        json(&file, &["check"]).1
    );
    assert_eq!(
        json(&file, &["check", "102", "104"]).1,
        without_names(before.1)
    );
}

#[test]
fn the_archive_has_what_is_read_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    for name in EXAMPLES {
        let file = capture(&example(name), directory.path(), name);
        let tree = unpack(&file);
        let mut host = Host::at(&file).unwrap();
        host.record();
        // What `capture` reads from itself is what check and topology read, and the display controllers beside it.
        let names = host.pci_names().unwrap();
        let topology = host.topology(names.iter().map(|name| name.parse().unwrap()));
        for name in &names {
            // A mapping is compared with it.
            host.subsystem(name.parse().unwrap()).unwrap();
        }
        let read: BTreeSet<_> = host
            .accesses()
            .into_iter()
            .filter_map(|access| match access {
                Access::File(path) => Some(path),
                _ => None,
            })
            .collect();
        for (path, node) in tree.iter() {
            let (Node::File(_), Some((above, file))) = (node, path.rsplit_once('/')) else {
                continue;
            };
            if above.starts_with("/sys/") {
                let function = above.rsplit_once('/').unwrap().1;
                let asked = format!("/sys/bus/pci/devices/{function}/{file}");
                assert!(read.contains(&asked), "{name}: nobody reads {path}");
            }
        }
        for function in topology.iter() {
            let config = format!("/sys/bus/pci/devices/{}/config", function.addr);
            let Ok(Some(Node::File(bytes))) = tree.get(&config) else {
                panic!("{config}")
            };
            assert!(bytes.len() <= 256, "{config} has {} bytes", bytes.len());
            assert!(!matches!(function.registers, Registers::Unreadable(_)));
        }
        let manifest = match tree.get("/manifest.json") {
            Ok(Some(Node::File(bytes))) => serde_json::from_slice::<Value>(bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(manifest["capture"], 1);
        assert_eq!(manifest["left_out"], serde_json::json!([]));
        let listed: Vec<_> = manifest["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|path| path.as_str().unwrap())
            .collect();
        let there = tree
            .iter()
            .filter(|(path, node)| **node != Node::Directory && *path != "/manifest.json");
        assert_eq!(listed, there.map(|(path, _)| path).collect::<Vec<_>>());
    }
}

#[test]
fn registers_that_cannot_be_read_stay_unreadable() {
    let copy = copy_of(&example("x399-two-7900xt"));
    let gpu = "sys/devices/pci0000:00/0000:00:03.1/0000:09:00.0/0000:0a:00.0/0000:0b:00.0";
    let config = fs::read(copy.path().join(gpu).join("config")).unwrap();
    for length in [0, 63, 64, 65, 100] {
        copy.write(&format!("{gpu}/config"), &config[..length]);
        let directory = tempfile::tempdir().unwrap();
        let file = capture(copy.path(), directory.path(), "capture");
        let (_, expected) = json(copy.path(), &["topology", "0b:00.0"]);
        assert_eq!(expected["functions"][0]["host_reason"], "unreadable");
        assert_eq!(
            json(&file, &["topology", "0b:00.0"]).1,
            expected,
            "{length}"
        );
        assert_eq!(
            json(&file, &["check"]).1,
            without_names(json(copy.path(), &["check"]).1),
            "{length}"
        );
    }
}

#[test]
fn broken_files_are_left_out_and_said_so() {
    let copy = copy_of(&example("x399-two-7900xt"));
    copy.write("etc/pve/atomicops.toml", "mode = \"nonsense\"\n");
    fs::remove_file(copy.path().join("etc/pve/mapping/pci.cfg")).unwrap();
    fs::create_dir(copy.path().join("etc/pve/mapping/pci.cfg")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture");
    let output = program(copy.path())
        .arg("capture")
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("left out: /etc/pve/atomicops.toml: it has an error"),
        "{error}"
    );
    assert!(error.contains("pci.cfg: not a regular file"), "{error}");
    assert!(
        unpack(&file)
            .get("/etc/pve/atomicops.toml")
            .unwrap()
            .is_none()
    );
}

#[test]
fn an_archive_is_as_good_as_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    lab::unpack(directory.path());
    // The captured machine as it came, packed by tar.
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/lab-q35-switch.tar.gz");
    let by_directory = Host::at(directory.path()).unwrap();
    let by_archive = Host::at(&packed).unwrap();
    let names = by_directory.pci_names().unwrap();
    assert_eq!(by_archive.pci_names().unwrap(), names);
    let addrs = || names.iter().map(|name| name.parse().unwrap());
    assert_eq!(by_archive.topology(addrs()), by_directory.topology(addrs()));
    assert_eq!(by_archive.tally().files, by_directory.tally().files);
    assert_eq!(
        by_archive.tally().config_bytes,
        by_directory.tally().config_bytes
    );
}

#[test]
fn bad_archives_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("archive");
    let escape = {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..16].copy_from_slice(b"../../etc/passwd");
        header.set_size(0);
        header.set_mode(0o644);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    };
    for (bytes, expected) in [
        (escape, "does not lie below its top"),
        (b"hello".to_vec(), "cannot read the archive"),
        (Vec::new(), "cannot read the archive"),
    ] {
        fs::write(&file, bytes).unwrap();
        let output = run(program(&file), &["check"]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.starts_with("error: --root ") && error.contains(expected),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }
    // Nothing but the archive is there.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn the_output_is_a_new_file_of_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = tempfile::tempdir().unwrap();
    let root = example("x399-two-7900xt");
    let file = capture(&root, directory.path(), "capture");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o7777,
        0o600
    );
    let before = fs::read(&file).unwrap();
    let output = run(program(&root), &["capture", "-o", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("File exists")
    );
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), &link).unwrap();
    assert_eq!(
        run(program(&root), &["capture", "-o", link.to_str().unwrap()])
            .status
            .code(),
        Some(2)
    );
    assert!(!directory.path().join("elsewhere").exists());
    // To standard output, and by default into the current directory.
    let output = run(program(&root), &["capture", "-o", "-"]);
    assert_eq!(output.stdout, before);
    let mut here = bare();
    here.current_dir(directory.path())
        .arg("--root")
        .arg(&root)
        .arg("capture");
    assert_eq!(here.output().unwrap().status.code(), Some(0));
    assert_eq!(
        fs::read(directory.path().join("pve-atomicops-pve1.tar.gz")).unwrap(),
        before
    );
}
