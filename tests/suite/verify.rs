//! `verify` as a black box: against a QEMU that is played, and against the real one.

use std::io::Write as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pve_atomicops::pci::Widths;
use serde_json::{Value, json};

use crate::support::HostTree;
use crate::support::fake_qemu::{FakeQemu, Step, hello, play, replace, session, window_closed};
use crate::support::live::said;
use crate::support::program::program;

const ALL_FUNCTIONS: &str = "machine: q35\nhostpci0: 0000:0b:00,pcie=1\n";
const EXPLICIT: &str = "machine: q35\nhostpci0: 0000:0b:00.0,pcie=1\n";
const RUNS_EXPLICIT: &str =
    "-device vfio-pci,host=0000:0b:00.0,id=hostpci0,bus=ich9-pcie-port-1,addr=0x0";
const RUNS_ALL: &str = "-device \
    vfio-pci,host=0000:0b:00.0,id=hostpci0.0,bus=ich9-pcie-port-1,addr=0x0.0,multifunction=on -device \
    vfio-pci,host=0000:0b:00.1,id=hostpci0.1,bus=ich9-pcie-port-1,addr=0x0.1";

/// A host with a card of two functions that can do 32 and 64 bit, and VM 101.
fn host(config: &str) -> HostTree {
    HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu)
        .audio("0000:0b:00.1", |audio| audio)
        .vm(101, config)
        .running(101)
}

/// VM 101's QEMU has this command line.
fn runs(tree: HostTree, devices: &str) -> HostTree {
    let line = format!("/usr/bin/kvm -id 101 -name guest -machine type=q35+pve0 {devices} ");
    tree.file("proc/4242/cmdline", line.replace(' ', "\0"))
}

/// The recorded guest with a current QEMU and this value in the first port's DEVCAP2.
fn guest(devcap2: &str) -> Vec<Step> {
    let mut steps = session("q35.session");
    replace(
        &mut steps,
        r#""micro": 22, "minor": 2, "major": 7"#,
        r#""micro": 2, "minor": 0, "major": 11"#,
    );
    replace(
        &mut steps,
        "00000000b00e0078: 0x00300020",
        &format!("00000000b00e0078: {devcap2}"),
    );
    steps
}

const OFFERS: &str = "0x003001a0";
const OFFERS_NOTHING: &str = "0x00300020";

fn start(tree: &HostTree, scripts: Vec<Vec<Step>>) -> FakeQemu {
    FakeQemu::start_at(Some(tree.at("run/qemu-server/101.qmp")), scripts)
}

fn verify(tree: &HostTree, arguments: &[&str]) -> Output {
    program(tree.path())
        .args(["verify", "101"])
        .args(arguments)
        .output()
        .expect("the program runs")
}

/// The answer and the exit status, with QEMU played.
fn answer(tree: &HostTree, scripts: Vec<Vec<Step>>) -> (Value, i32) {
    let qemu = start(tree, scripts);
    let output = verify(tree, &["--wait", "120", "--format", "json"]);
    qemu.finish();
    let (stdout, stderr, status) = said(&output);
    assert_eq!(stderr, "");
    (serde_json::from_str(&stdout).expect("JSON"), status)
}

#[test]
fn what_is_read_as_predicted_is_fine() {
    let tree = runs(host(EXPLICIT), RUNS_EXPLICIT);
    let (answer, status) = answer(&tree, vec![guest(OFFERS)]);
    assert_eq!(status, 0, "{answer:#}");
    assert_eq!(answer["schema"], 1);
    assert_eq!(
        (&answer["qemu"], &answer["status"], &answer["agrees"]),
        (&json!("11.0.2"), &json!("running"), &json!(true))
    );
    assert_eq!(answer["predicted_from"], "running");
    assert_eq!(answer["config_changed"], json!([]));
    assert_eq!(
        answer["ports"][0],
        json!({
            "port": "ich9-pcie-port-1", "address": "0000:00:1c.0", "devcap2": OFFERS,
            "read": [32, 64], "predicted": [32, 64], "uncertain": null, "agrees": true,
            "functions": [{
                "id": "hostpci0", "guest": "0000:01:00.0", "vendor": "0x1af4", "device": "0x1044", "class": "0x00ff",
                "direct": true, "requester_enabled": false, "host": "0000:0b:00.0", "host_widths": [32, 64],
                "host_requester_enabled": false,
            }],
        })
    );
    // The two others have nothing that is passed from this host.
    assert_eq!(answer["ports"][1]["predicted"], json!([]));
    assert_eq!(answer["ports"][1]["functions"][0]["host"], Value::Null);
    assert_eq!(
        answer["entries"],
        json!([{
            "key": "hostpci0", "host": "0000:0b:00.0", "bus": "ich9-pcie-port-1", "host_widths": [32, 64],
            "guest_widths": [32, 64], "verdict": "ok",
        }])
    );
}

#[test]
fn the_text_names_port_device_and_both_requester_bits() {
    let tree = HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu.requester_enabled())
        .audio("0000:0b:00.1", |audio| audio)
        .vm(101, EXPLICIT)
        .running(101);
    let tree = runs(tree, RUNS_EXPLICIT);
    let mut taken = guest(OFFERS);
    replace(
        &mut taken,
        "00000000b0100064: 0x00300000 0x00000000",
        "00000000b0100064: 0x00300000 0x00000040",
    );
    for (script, driver) in [
        (
            guest(OFFERS),
            "the guest's driver has not taken an offer (requester enable is clear in the guest)",
        ),
        (
            taken,
            "the guest's driver took the offer (requester enable is set in the guest)",
        ),
    ] {
        let qemu = start(&tree, vec![script]);
        let output = verify(&tree, &["--wait", "120"]);
        qemu.finish();
        let _ = std::fs::remove_file(tree.at("run/qemu-server/101.qmp"));
        let (stdout, stderr, status) = said(&output);
        assert_eq!((stderr.as_str(), status), ("", 0));
        let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words,
            format!(
                "VM 101, QEMU 11.0.2, running: as predicted ich9-pcie-port-1 at 0000:00:1c.0 shows AtomicOps of 32 and 64 \
                 bit, as predicted hostpci0 at 0000:01:00.0: {driver}; host 0000:0b:00.0 offers 32 and 64 bit, requester \
                 enable is set there"
            )
        );
    }
}

#[test]
fn a_loss_that_was_predicted_is_still_a_loss() {
    let tree = runs(host(ALL_FUNCTIONS), RUNS_ALL);
    let mut script = guest(OFFERS_NOTHING);
    replace(&mut script, "\"hostpci0\"", "\"hostpci0.0\"");
    let (answer, status) = answer(&tree, vec![script]);
    assert_eq!(status, 1, "{answer:#}");
    assert_eq!(answer["agrees"], true);
    assert_eq!(answer["config_changed"], json!([]));
    assert_eq!(answer["ports"][0]["predicted"], json!([]));
    assert_eq!(answer["entries"][0]["key"], "hostpci0");
    assert_eq!(answer["entries"][0]["verdict"], "lost");
}

#[test]
fn a_host_that_cannot_loses_nothing() {
    let tree = HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port.completes(Widths::NONE))
        .gpu("0000:0b:00.0", |gpu| gpu)
        .vm(101, EXPLICIT)
        .running(101);
    let (answer, status) = answer(&runs(tree, RUNS_EXPLICIT), vec![guest(OFFERS_NOTHING)]);
    assert_eq!(status, 0, "{answer:#}");
    assert_eq!(answer["entries"][0]["verdict"], "unavailable");
}

#[test]
fn a_difference_is_told_on_every_way_out() {
    let tree = runs(host(EXPLICIT), RUNS_EXPLICIT);
    std::fs::create_dir_all(tree.at("dev")).expect("directory");
    let log = UnixDatagram::bind(tree.at("dev/log")).expect("socket");
    let qemu = start(&tree, vec![guest(OFFERS_NOTHING)]);
    let output = verify(&tree, &["--wait", "120", "--syslog"]);
    qemu.finish();
    let (stdout, _, status) = said(&output);
    assert_eq!(status, 1);
    assert!(stdout.starts_with("VM 101, QEMU 11.0.2, running: differs from the prediction\n"));
    assert!(
        stdout.contains("shows no AtomicOps; predicted AtomicOps of 32"),
        "{stdout}"
    );
    let messages: Vec<_> = (0..3).map(|_| message(&log)).collect();
    assert!(
        messages[0].starts_with("<28>")
            && messages[0].contains(
                "VM 101 verify: differs from the prediction: ich9-pcie-port-1 32bit- 64bit-"
            ),
        "{messages:?}"
    );
    assert!(
        messages[1].contains("predicted AtomicOps of 32 and 64 bit"),
        "{messages:?}"
    );
    assert!(
        messages[2].contains("lost: hostpci0: the host offers 32 and 64 bit"),
        "{messages:?}"
    );
}

fn message(log: &UnixDatagram) -> String {
    log.set_read_timeout(Some(Duration::from_secs(120)))
        .expect("a limit");
    let mut buffer = [0; 4096];
    let length = log.recv(&mut buffer).expect("a message");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn a_changed_configuration_is_named_and_what_runs_is_predicted() {
    let tree = runs(host(ALL_FUNCTIONS), RUNS_EXPLICIT);
    let (answer, status) = answer(&tree, vec![guest(OFFERS)]);
    assert_eq!(status, 0, "{answer:#}");
    assert_eq!(answer["predicted_from"], "running");
    assert_eq!(
        answer["config_changed"],
        json!([
            "hostpci0: the configuration has 0000:0b:00.0 on ich9-pcie-port-1 at 0.0 multifunction, 0000:0b:00.1 on \
             ich9-pcie-port-1 at 0.1, the running guest 0000:0b:00.0 on ich9-pcie-port-1 at 0.0"
        ])
    );
}

#[test]
fn devices_of_args_are_compared_as_well() {
    let tree = runs(
        host("machine: q35\nargs: -device vfio-pci,host=0b:00.0,bus=ich9-pcie-port-1,addr=0x0\n"),
        "-device vfio-pci,host=0b:00.0,bus=ich9-pcie-port-1,addr=0x0",
    );
    let mut script = guest(OFFERS);
    replace(&mut script, "\"hostpci0\"", "\"\"");
    let (answer, status) = answer(&tree, vec![script]);
    assert_eq!(status, 0, "{answer:#}");
    assert_eq!(answer["config_changed"], json!([]));
    assert_eq!(answer["ports"][0]["predicted"], json!([32, 64]));
    assert_eq!(answer["entries"][0]["key"], "0000:0b:00.0");
}

/// As Proxmox VE 9 starts it, the devices of disk and network included.
#[test]
fn a_whole_command_line_is_understood() {
    let tree = host("machine: pc-q35-9.2\nhostpci4: 0000:0b:00.0,pcie=1,x-vga=1\n").file(
        "proc/4242/cmdline",
        "/usr/bin/kvm -id 101 -name train,debug-threads=on -no-shutdown -chardev \
         socket,id=qmp,path=/var/run/qemu-server/101.qmp,server=on,wait=off -mon chardev=qmp,mode=control -pidfile \
         /var/run/qemu-server/101.pid -daemonize -smp 8,sockets=1,cores=8,maxcpus=8 -nodefaults -vga none -nographic -cpu \
         host,kvm=off,+kvm_pv_eoi -m 32768 -object iothread,id=iothread-virtioscsi0 -readconfig \
         /usr/share/qemu-server/pve-q35-4.0.cfg -device vmgenid,guid=1b2c -device \
         usb-tablet,id=tablet,bus=ehci.0,port=1 -device \
         pcie-root-port,id=ich9-pcie-port-5,addr=10.0,x-speed=16,x-width=32,multifunction=on,bus=pcie.0,port=5,chassis=5 \
         -device vfio-pci,host=0000:0b:00.0,id=hostpci4,bus=ich9-pcie-port-5,addr=0x0,x-vga=on -device \
         virtio-balloon-pci,id=balloon0,bus=pci.0,addr=0x3,free-page-reporting=on -device \
         virtio-scsi-pci,id=virtioscsi0,bus=pci.3,addr=0x1,iothread=iothread-virtioscsi0 -device \
         {\"bus\":\"virtioscsi0.0\",\"driver\":\"scsi-hd\",\"id\":\"scsi0\"} -device \
         virtio-net-pci,mac=BC:24:11:00:00:01,netdev=net0,bus=pci.0,addr=0x12,id=net0 -machine \
         hpet=off,type=pc-q35-9.2+pve1 -machine smm=off "
            .replace(' ', "\0"),
    );
    let mut script = guest(OFFERS);
    replace(&mut script, "ich9-pcie-port-1", "ich9-pcie-port-5");
    replace(&mut script, "hostpci0", "hostpci4");
    let (answer, status) = answer(&tree, vec![script]);
    assert_eq!(status, 0, "{answer:#}");
    assert_eq!(
        (&answer["predicted_from"], &answer["config_changed"]),
        (&json!("running"), &json!([]))
    );
    assert_eq!(answer["ports"][0]["predicted"], json!([32, 64]));
    assert_eq!(
        answer["ports"][0]["functions"][0]["host"],
        json!("0000:0b:00.0")
    );
}

#[test]
fn an_alternative_of_a_mapping_is_no_change() {
    let map = |path: &str, group: u32| {
        format!(
            "\tmap node=pve1,path={path},id=1002:744c,iommugroup={group},subsystem-id=1da2:e471\n"
        )
    };
    let tree = HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu.group(27))
        .root_port("0000:00:03.2", 0x0c, |port| port)
        .gpu("0000:0c:00.0", |gpu| gpu.group(28))
        .mapping(&format!(
            "card\n{}{}",
            map("0000:0c:00.0", 28),
            map("0000:0b:00.0", 27)
        ))
        .vm(101, "machine: q35\nhostpci0: mapping=card,pcie=1\n")
        .running(101);
    let (answer, status) = answer(&runs(tree, RUNS_EXPLICIT), vec![guest(OFFERS)]);
    assert_eq!(status, 0, "{answer:#}");
    assert_eq!(answer["config_changed"], json!([]));
    assert_eq!(answer["entries"][0]["host"], "0000:0b:00.0");
}

#[test]
fn without_a_command_line_the_configuration_is_what_there_is() {
    let (same, status) = answer(
        &host("machine: q35\nhostpci0: 0000:0b:00.0,pcie=1\nhostpci1: 0000:0b:00.1\n"),
        vec![guest(OFFERS)],
    );
    assert_eq!(status, 0, "{same:#}");
    assert_eq!(same["predicted_from"], "config");
    assert_eq!(same["config_changed"], json!([]));
    let (other, _) = answer(&host(EXPLICIT), vec![guest(OFFERS)]);
    assert_eq!(
        other["config_changed"],
        json!(["hostpci1: in the running guest, not in the configuration"])
    );
}

#[test]
fn the_running_qemu_decides_and_not_the_installed_one() {
    let tree = runs(host(EXPLICIT), RUNS_EXPLICIT);
    // As it was recorded: QEMU 7.2, while 11.0.2 is installed.
    let (answer, status) = answer(&tree, vec![session("q35.session")]);
    assert_eq!(answer["qemu"], "7.2.22");
    assert_eq!(
        (&answer["ports"][0]["predicted"], &answer["agrees"]),
        (&json!([]), &json!(true))
    );
    assert_eq!(status, 1, "the host could give it: {answer:#}");
}

#[test]
fn an_i440fx_has_nothing_to_read_and_loses_what_the_host_gives() {
    let config = "hostpci0: 0000:0b:00.0\n";
    let devices = "-machine pc -device vfio-pci,host=0000:0b:00.0,id=hostpci0,bus=pci.0,addr=0x10";
    let tree = runs(host(config), devices);
    let qemu = start(&tree, vec![session("i440fx.session")]);
    let output = verify(&tree, &["--wait", "120"]);
    qemu.finish();
    let (stdout, stderr, status) = said(&output);
    assert_eq!((stderr.as_str(), status), ("", 1));
    assert!(
        stdout.starts_with("VM 101: its machine is no q35 and has no PCI Express"),
        "{stdout}"
    );
    assert!(stdout.contains("lost: hostpci0:"), "{stdout}");

    let tree = HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port.completes(Widths::NONE))
        .gpu("0000:0b:00.0", |gpu| gpu)
        .vm(101, config)
        .running(101);
    let (answer, status) = answer(&runs(tree, devices), vec![session("i440fx.session")]);
    assert_eq!((status, &answer["pci_express"]), (0, &json!(false)));
}

#[test]
fn a_guest_that_reboots_meanwhile_is_read_in_the_end() {
    let mut moves = guest(OFFERS);
    let last = moves.len() - 1;
    replace(&mut moves[last..], "\"secondary\": 1", "\"secondary\": 7");
    let tree = runs(host(EXPLICIT), RUNS_EXPLICIT);
    let (answer, status) = answer(&tree, vec![window_closed(), moves, guest(OFFERS)]);
    assert_eq!((status, &answer["agrees"]), (0, &json!(true)));
}

#[test]
fn a_vm_that_is_started_anew_meanwhile_is_not_compared() {
    let tree = runs(host(EXPLICIT), RUNS_EXPLICIT);
    let listener = UnixListener::bind(tree.at("run/qemu-server/101.qmp")).expect("a socket");
    let other = "/usr/bin/kvm\0-id\x00101\0-machine\0q35\0";
    let place = tree.at("proc/4242/cmdline");
    let qemu = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        std::fs::write(place, other).expect("write");
        play(&stream, &guest(OFFERS))
    });
    let message = fails(&tree, &["--wait", "120"]);
    assert!(qemu.join().expect("it was read"), "to the end");
    assert_eq!(
        message,
        "error: VM 101 was started anew during the reading: try it again\n"
    );
}

/// The message of a run that has to fail.
fn fails(tree: &HostTree, arguments: &[&str]) -> String {
    let (stdout, stderr, status) = said(&verify(tree, arguments));
    assert_eq!((stdout.as_str(), status), ("", 2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn what_does_not_run_is_told_apart() {
    let tree = HostTree::new().vm(101, EXPLICIT);
    assert_eq!(fails(&tree, &[]), "error: VM 101 does not run\n");
    let tree = HostTree::new().vm(102, EXPLICIT);
    assert!(fails(&tree, &[]).contains("there is no VM 101 on this node"));
    // It has just ended.
    let message = fails(&host(EXPLICIT), &[]);
    assert!(
        message.starts_with("error: VM 101 has stopped: no VM is running here"),
        "{message}"
    );
    // Another process has taken over the number.
    let tree = host(EXPLICIT).file("proc/4242/cmdline", "/usr/bin/less\x00101\x00");
    let qemu = start(&tree, vec![guest(OFFERS_NOTHING)]);
    verify(&tree, &["--wait", "120"]);
    qemu.finish();
}

#[test]
fn trouble_with_the_socket_is_an_error_within_the_limit() {
    let garbage = vec![Step::line("SSH-2.0-OpenSSH_9.2\u{1b}[2J"), Step::Wait];
    let half: Vec<_> = hello()
        .into_iter()
        .chain([
            Step::Receive,
            Step::Send(b"{\"return\":".to_vec()),
            Step::Wait,
        ])
        .collect();
    for (script, words) in [
        (vec![Step::Wait], "is busy"),
        (garbage, "cannot understand QEMU's answer"),
        (half, "did not answer query-version in time"),
        (vec![], "closed the connection"),
        (window_closed(), "firmware has not set up"),
    ] {
        let tree = host(EXPLICIT);
        let path = tree.at("run/qemu-server/101.qmp");
        let qemu = FakeQemu::repeat_at(Some(path), script);
        let message = fails(&tree, &["--wait", "2"]);
        assert!(message.contains(words), "{message}");
        assert!(
            !message.trim_end().contains(char::is_control),
            "{message:?}"
        );
        qemu.finish();
    }
}

#[test]
fn an_error_goes_to_syslog_too() {
    let tree = HostTree::new().vm(101, EXPLICIT);
    std::fs::create_dir_all(tree.at("dev")).expect("directory");
    let log = UnixDatagram::bind(tree.at("dev/log")).expect("socket");
    fails(&tree, &["--syslog"]);
    let text = message(&log);
    assert!(
        text.starts_with("<28>") && text.contains("VM 101 verify: VM 101 does not run"),
        "{text}"
    );
}

#[test]
fn post_start_does_not_wait_for_the_check_that_it_starts() {
    let tree = runs(host(EXPLICIT).policy("verify = true\n"), RUNS_EXPLICIT);
    std::fs::create_dir_all(tree.at("dev")).expect("directory");
    let log = UnixDatagram::bind(tree.at("dev/log")).expect("socket");
    // A QEMU that greets, and then says nothing until the hook is over. As with Proxmox, that is when its output is at its
    // end, which a check that had inherited it would keep open.
    let listener = UnixListener::bind(tree.at("run/qemu-server/101.qmp")).expect("a socket");
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let greeting = hello().swap_remove(0);
    let qemu = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the check comes");
        let Step::Send(bytes) = greeting else {
            panic!("{greeting:?}");
        };
        stream.write_all(&bytes).expect("a greeting");
        wait.recv().expect("the test goes on");
    });
    let output = program(tree.path())
        .args(["101", "post-start"])
        .output()
        .expect("the program runs");
    let (stdout, stderr, status) = said(&output);
    assert_eq!((stdout.as_str(), stderr.as_str(), status), ("", "", 0));
    log.set_nonblocking(true).expect("a socket");
    assert!(log.recv(&mut [0; 64]).is_err(), "the check cannot be over");
    log.set_nonblocking(false).expect("a socket");
    over.send(()).expect("QEMU is there");
    qemu.join().expect("it was asked");
    let first = message(&log);
    assert!(
        first.contains("VM 101 verify: ") && first.contains("has the VM stopped?"),
        "{first}"
    );
}

/// A real QEMU that ends with the test.
struct RealQemu(Child);

impl RealQemu {
    fn start(tree: &HostTree, arguments: &[&str]) -> Self {
        let socket = tree.at("run/qemu-server/101.qmp");
        let process = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg",
                "-m",
                "64",
                "-nodefaults",
                "-display",
                "none",
                "-qmp",
            ])
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-system-x86_64 is needed for this test (Debian package qemu-system-x86)");
        let qemu = Self(process);
        let deadline = Instant::now() + Duration::from_secs(120);
        while !socket.exists() {
            assert!(Instant::now() < deadline, "QEMU made no socket");
            std::thread::sleep(Duration::from_millis(20));
        }
        qemu
    }
}

impl Drop for RealQemu {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_real_guest_is_compared() {
    let tree = runs(host(ALL_FUNCTIONS), RUNS_ALL);
    let _qemu = RealQemu::start(
        &tree,
        &[
            "-machine",
            "q35",
            "-device",
            "pcie-root-port,id=ich9-pcie-port-1,addr=1c.0,multifunction=on,chassis=1",
            "-device",
            "virtio-rng-pci,bus=ich9-pcie-port-1,id=hostpci0.0,addr=0.0,multifunction=on",
            "-device",
            "virtio-rng-pci,bus=ich9-pcie-port-1,id=hostpci0.1,addr=0.1",
        ],
    );
    let (stdout, stderr, status) = said(&verify(&tree, &["--wait", "120", "--format", "json"]));
    assert_eq!((stderr.as_str(), status), ("", 1), "the host could give it");
    let answer: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(
        (&answer["agrees"], &answer["config_changed"]),
        (&json!(true), &json!([]))
    );
    let port = &answer["ports"][0];
    assert_eq!(
        (&port["read"], &port["predicted"]),
        (&json!([]), &json!([]))
    );
    assert_eq!(port["devcap2"], "0x00300020");
    let functions = port["functions"].as_array().expect("functions");
    let functions: Vec<_> = functions
        .iter()
        .map(|function| (&function["id"], &function["host"]))
        .collect();
    assert_eq!(
        functions,
        [
            (&json!("hostpci0.0"), &json!("0000:0b:00.0")),
            (&json!("hostpci0.1"), &json!("0000:0b:00.1"))
        ]
    );
}

#[test]
fn a_real_guest_that_has_not_started_is_an_error_that_says_so() {
    let tree = host(EXPLICIT);
    let _qemu = RealQemu::start(&tree, &["-machine", "q35", "-S"]);
    let message = fails(&tree, &["--wait", "3"]);
    assert!(
        message.contains("firmware") && message.contains("'prelaunch'"),
        "{message}"
    );
}

#[test]
fn a_real_i440fx_has_no_root_port() {
    let tree = runs(host("memory: 64\n"), "-machine pc");
    let _qemu = RealQemu::start(&tree, &["-machine", "pc"]);
    let (stdout, _, status) = said(&verify(&tree, &["--wait", "120"]));
    assert_eq!(status, 0);
    assert!(stdout.contains("no PCI Express"), "{stdout}");
}
