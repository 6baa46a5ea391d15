//! The QMP client and `verify::readings`, against recorded sessions, against a QEMU that misbehaves, and against the
//! real one.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use pve_atomicops::pci::express::DevCap2;
use pve_atomicops::pci::{Width, Widths};
use pve_atomicops::qmp::{Client, QmpError, REPLY_LIMIT};
use pve_atomicops::verify::{self, NotReady, Readings, VerifyError};

use crate::support::fake_qemu::{FakeQemu, Step, hello, replace, session, window_closed};

/// Far enough in the future that only a hang reaches it.
fn patient() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A deadline for tests in which it has to pass, after one attempt at least.
fn some_attempts() -> Instant {
    Instant::now() + Duration::from_secs(3)
}

fn read(scripts: Vec<Vec<Step>>, deadline: Instant) -> Result<Readings, VerifyError> {
    let qemu = FakeQemu::start(scripts);
    let result = verify::readings(&qemu.path, deadline);
    qemu.finish();
    result
}

/// What asking `query-status` gives when `script` follows the greeting.
fn ask(script: Vec<Step>, deadline: Instant) -> QmpError {
    let qemu = FakeQemu::start(vec![hello().into_iter().chain(script).collect()]);
    let mut client = Client::connect(&qemu.path, deadline).unwrap();
    let error = client.query_status().unwrap_err();
    drop(client);
    qemu.finish();
    error
}

fn summary(readings: &Readings) -> Vec<String> {
    let function = |function: &verify::FunctionReading| {
        format!(
            "{} {} {:04x}:{:04x} {}{}",
            function.qdev_id,
            function.address,
            function.vendor,
            function.device,
            if function.direct { "direct " } else { "" },
            match function.requester_enabled {
                Some(true) => "requester+",
                Some(false) => "requester-",
                None => "requester?",
            }
        )
    };
    let ports = readings.ports.iter().flat_map(|port| {
        let head = format!("{} {} {}", port.qdev_id, port.address, port.completes);
        let behind = port
            .behind
            .iter()
            .flatten()
            .map(|f| format!("  {}", function(f)));
        std::iter::once(head).chain(behind.collect::<Vec<_>>())
    });
    ports
        .chain(readings.elsewhere.iter().map(function))
        .collect()
}

#[test]
fn a_recorded_guest_reads_as_it_was() {
    let readings = read(vec![session("q35.session")], patient()).unwrap();
    assert_eq!(readings.qemu.numbers(), (7, 2, 22));
    assert!(readings.status.running);
    assert_eq!(
        summary(&readings),
        [
            "ich9-pcie-port-1 0000:00:1c.0 32bit- 64bit- 128bitCAS-",
            "  hostpci0 0000:01:00.0 1af4:1044 direct requester-",
            "ich9-pcie-port-2 0000:00:1c.1 32bit- 64bit- 128bitCAS-",
            "  card 0000:04:00.0 1b36:0010 requester-",
            "ich9-pcie-port-3 0000:00:1c.2 32bit- 64bit- 128bitCAS-",
            "hostpci1 0000:00:10.0 8086:100e requester?",
        ]
    );
    assert_eq!(readings.ports[0].devcap2, Some(DevCap2(0x0030_0020)));
}

#[test]
fn completer_and_requester_bits_come_through() {
    let mut steps = session("q35.session");
    replace(
        &mut steps,
        "00000000b00e0078: 0x00300020",
        "00000000b00e0078: 0x003001a0",
    );
    replace(
        &mut steps,
        "00000000b00e1078: 0x00300020",
        "00000000b00e1078: 0x00300220",
    );
    replace(
        &mut steps,
        "00000000b0100064: 0x00300000 0x00000000",
        "00000000b0100064: 0x00300000 0x00000040",
    );
    let readings = read(vec![steps], patient()).unwrap();
    assert_eq!(readings.ports[0].completes, Widths::W32_W64);
    assert_eq!(readings.ports[1].completes, Widths::NONE.with(Width::W128));
    assert_eq!(readings.ports[2].completes, Widths::NONE);
    let gpu = &readings.ports[0].behind.as_ref().unwrap()[0];
    assert_eq!(gpu.requester_enabled, Some(true));
}

#[test]
fn firmware_that_is_not_done_is_waited_for() {
    let scripts = vec![window_closed(), window_closed(), session("q35.session")];
    assert_eq!(read(scripts, patient()).unwrap().ports.len(), 3);
}

#[test]
fn firmware_that_never_comes_is_an_error_that_says_so() {
    let qemu = FakeQemu::repeat(window_closed());
    let error = verify::readings(&qemu.path, some_attempts()).unwrap_err();
    qemu.finish();
    assert!(error.to_string().contains("firmware"), "{error}");
    match error {
        VerifyError::NotReady {
            reason: NotReady::WindowClosed,
            status,
            ..
        } => assert_eq!(status, "running"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reboot_in_the_middle_is_tried_again() {
    // The window closes between the first look at it and the last.
    let mut closes = session("q35.session");
    let last_window = closes.len() - 3;
    replace(
        &mut closes[last_window..=last_window],
        "2952790016",
        "18446744073709551615",
    );
    closes.truncate(last_window + 1);
    // The bus numbers move.
    let mut renumbered = session("q35.session");
    let last = renumbered.len() - 1;
    replace(
        &mut renumbered[last..],
        "\"secondary\": 1",
        "\"secondary\": 7",
    );
    // Memory vanishes under the first port; nothing below it is asked for then.
    let mut vanishes = session("q35.session");
    let at = vanishes
        .iter()
        .position(|step| matches!(step, Step::Expect(line) if line.contains("0xb00e0078")))
        .unwrap();
    vanishes[at + 1] =
        Step::line(r#"{"return": "00000000b00e0078: Cannot access memory\r\n", "id": 11}"#);
    let rest = vanishes.len() - 4;
    vanishes.drain(at + 2..rest);
    for step in &mut vanishes[at + 2..] {
        match step {
            Step::Expect(line) => {
                *line = line
                    .replace("\"id\":44", "\"id\":12")
                    .replace("\"id\":45", "\"id\":13");
            }
            Step::Send(bytes) => {
                let text = String::from_utf8(bytes.clone()).unwrap();
                *bytes = text
                    .replace("\"id\": 44", "\"id\": 12")
                    .replace("\"id\": 45", "\"id\": 13")
                    .into_bytes();
            }
            _ => {}
        }
    }
    let scripts = vec![closes, renumbered, vanishes, session("q35.session")];
    let readings = read(scripts, patient()).unwrap();
    assert_eq!(readings.ports[0].completes, Widths::NONE);
    assert_eq!(readings.ports.len(), 3);
}

#[test]
fn a_port_without_a_number_is_read_in_the_end() {
    let mut steps = session("q35.session");
    // The third port: nothing behind it, so that the walk stays as it was recorded.
    replace(
        &mut steps,
        r#""subordinate": 5}, "devices": []}"#,
        r#""subordinate": 5}}"#,
    );
    let qemu = FakeQemu::repeat(steps);
    let readings = verify::readings(&qemu.path, some_attempts()).unwrap();
    qemu.finish();
    let behind = readings.ports.iter().map(|port| port.behind.is_some());
    assert_eq!(behind.collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(readings.ports[2].devcap2, Some(DevCap2(0x0030_0020)));
}

#[test]
fn a_machine_without_the_window_is_told_apart() {
    let error = read(vec![session("i440fx.session")], patient()).unwrap_err();
    assert!(matches!(error, VerifyError::NoWindow), "{error:?}");
}

#[test]
fn no_socket_means_no_vm() {
    let directory = tempfile::tempdir().unwrap();
    let error = Client::connect(&directory.path().join("101.qmp"), patient()).unwrap_err();
    assert!(matches!(error, QmpError::Absent { .. }), "{error:?}");
}

#[test]
fn a_socket_left_over_means_no_vm() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("101.qmp");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let error = Client::connect_within(&path, patient(), Duration::from_millis(120)).unwrap_err();
    assert!(matches!(error, QmpError::Absent { .. }), "{error:?}");
}

#[test]
fn a_client_that_does_not_leave_makes_the_socket_busy() {
    let qemu = FakeQemu::start(vec![hello().into_iter().chain([Step::Wait]).collect()]);
    let first = Client::connect(&qemu.path, patient()).unwrap();
    let error =
        Client::connect_within(&qemu.path, patient(), Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, QmpError::Busy { .. }), "{error:?}");
    drop(first);
    qemu.finish();
}

#[test]
fn a_full_backlog_makes_the_socket_busy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("101.qmp");
    let listener = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let error = Client::connect_within(&path, patient(), Duration::from_millis(120)).unwrap_err();
    assert!(matches!(error, QmpError::Busy { .. }), "{error:?}");
}

#[test]
fn a_busy_socket_is_waited_for() {
    let first: Vec<Step> = hello().into_iter().chain([Step::Wait]).collect();
    let qemu = FakeQemu::start(vec![first, session("q35.session")]);
    let other = Client::connect(&qemu.path, patient()).unwrap();
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        drop(other);
    });
    assert_eq!(
        verify::readings(&qemu.path, patient()).unwrap().ports.len(),
        3
    );
    leaves.join().unwrap();
    qemu.finish();
}

#[test]
fn a_greeting_that_is_none_is_garbage() {
    for greeting in [
        "SSH-2.0-OpenSSH_9.2",
        "",
        "{}",
        r#"{"QMP": {}}"#,
        "\u{1b}[2J\u{0}",
    ] {
        let qemu = FakeQemu::start(vec![vec![Step::line(greeting), Step::Wait]]);
        let error = Client::connect(&qemu.path, patient()).unwrap_err();
        assert!(matches!(error, QmpError::Garbage { .. }), "{error:?}");
        assert!(!error.to_string().contains(char::is_control), "{error}");
        qemu.finish();
    }
}

#[test]
fn an_answer_that_is_none_is_garbage() {
    for answer in [
        "hello",
        "[]",
        "{}",
        r#"{"id": 2}"#,
        r#"{"return": "running", "id": 2}"#,
        r#"{"return": {"running": true, "status": "running"}, "id": 1}"#,
        r#"{"return": {"running": true, "status": "running"}}"#,
        r#"{"return": {"running": "yes", "status": "running"}, "id": 2}"#,
        r#"{"error": "no", "id": 2}"#,
    ] {
        let error = ask(
            vec![Step::Receive, Step::line(answer), Step::Wait],
            patient(),
        );
        assert!(
            matches!(
                error,
                QmpError::Garbage {
                    during: "query-status",
                    ..
                }
            ),
            "{answer}: {error:?}"
        );
    }
}

#[test]
fn events_are_passed_over() {
    let event = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESET", "data": {}}"#;
    let steps = [
        Step::line(event),
        Step::Receive,
        Step::line(event),
        Step::line(event),
        Step::line(r#"{"return": {"running": false, "status": "paused"}, "id": 2}"#),
    ];
    let qemu = FakeQemu::start(vec![hello().into_iter().chain(steps).collect()]);
    let mut client = Client::connect(&qemu.path, patient()).unwrap();
    assert_eq!(client.query_status().unwrap().status, "paused");
    qemu.finish();
}

#[test]
fn an_error_keeps_its_class() {
    let answer = r#"{"error": {"class": "CommandNotFound", "desc": "no \u001b[1m"}, "id": 2}"#;
    match ask(vec![Step::Receive, Step::line(answer)], patient()) {
        QmpError::Refused { class, desc, .. } => {
            assert_eq!(
                (class.as_str(), desc.as_str()),
                ("CommandNotFound", "no \\u{1b}[1m")
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_endless_line_has_an_end() {
    let error = ask(
        vec![Step::Receive, Step::Flood(vec![b' '; 64 << 10])],
        patient(),
    );
    assert!(
        matches!(
            error,
            QmpError::TooLong {
                limit: REPLY_LIMIT,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn endless_events_have_an_end() {
    let error = ask(
        vec![
            Step::Receive,
            Step::Flood(b"{\"event\": \"RESET\"}\n".to_vec()),
        ],
        Instant::now() + Duration::from_secs(2),
    );
    assert!(
        matches!(
            error,
            QmpError::Timeout {
                during: "query-status"
            }
        ),
        "{error:?}"
    );
}

#[test]
fn half_an_answer_is_waited_for_until_the_deadline() {
    let half = Step::Send(br#"{"return": {"running": tr"#.to_vec());
    let deadline = Instant::now() + Duration::from_secs(2);
    let error = ask(vec![Step::Receive, half, Step::Wait], deadline);
    assert!(
        matches!(
            error,
            QmpError::Timeout {
                during: "query-status"
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_vm_that_stops_is_told_apart() {
    let half = Step::Send(br#"{"return": {"running": tr"#.to_vec());
    for end in [vec![Step::Receive], vec![Step::Receive, half], vec![]] {
        let error = ask(end, patient());
        assert!(
            matches!(
                error,
                QmpError::Closed {
                    during: "query-status"
                }
            ),
            "{error:?}"
        );
    }
}

#[test]
fn a_qemu_that_does_not_greet_is_busy_and_no_hang() {
    let qemu = FakeQemu::start(vec![vec![Step::Wait]]);
    let error = verify::readings(&qemu.path, some_attempts()).unwrap_err();
    assert!(
        matches!(error, VerifyError::Qmp(QmpError::Busy { .. })),
        "{error:?}"
    );
    qemu.finish();
}

/// A real QEMU that ends with the test.
struct RealQemu {
    process: Child,
    directory: tempfile::TempDir,
}

impl RealQemu {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
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
            .arg(format!(
                "unix:{},server=on,wait=off",
                directory.path().join("qmp").display()
            ))
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-system-x86_64 is needed for this test (Debian package qemu-system-x86)");
        let qemu = Self { process, directory };
        let deadline = patient();
        while !qemu.socket().exists() {
            assert!(Instant::now() < deadline, "QEMU made no socket");
            std::thread::sleep(Duration::from_millis(20));
        }
        qemu
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("qmp")
    }
}

impl Drop for RealQemu {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// What QEMU itself says of a port, by a way that the program does not use: `query-pci` is the same table as `info pci`.
fn bus_below(socket: &Path, port: &str) -> u8 {
    let mut client = Client::connect(socket, patient()).unwrap();
    let tree = client.query_pci().unwrap();
    let device = tree
        .iter()
        .flat_map(|bus| &bus.devices)
        .find(|device| device.qdev_id == port)
        .unwrap();
    device.pci_bridge.as_ref().unwrap().bus.secondary
}

#[test]
fn a_real_guest_is_read_as_soon_as_its_firmware_is_done() {
    let qemu = RealQemu::start(&[
        "-machine",
        "q35",
        "-device",
        "pcie-root-port,id=ich9-pcie-port-1,addr=1c.0,multifunction=on,chassis=1",
        "-device",
        "ioh3420,id=old,addr=1c.1,chassis=2",
        "-device",
        "virtio-rng-pci,bus=ich9-pcie-port-1,id=hostpci0.0,addr=0.0,multifunction=on",
        "-device",
        "virtio-rng-pci,bus=ich9-pcie-port-1,id=hostpci0.1,addr=0.1",
    ]);
    let readings = verify::readings(&qemu.socket(), patient()).unwrap();
    assert_eq!(
        summary(&readings),
        [
            "ich9-pcie-port-1 0000:00:1c.0 32bit- 64bit- 128bitCAS-",
            "  hostpci0.0 0000:01:00.0 1af4:1044 direct requester-",
            "  hostpci0.1 0000:01:00.1 1af4:1044 direct requester-",
            "old 0000:00:1c.1 32bit- 64bit- 128bitCAS-",
        ]
    );
    assert_eq!(bus_below(&qemu.socket(), "ich9-pcie-port-1"), 1);
    // What QEMU's root ports have without a passed device: extended format, prefixes, ARI forwarding. That the other
    // bits are zero is then no accident of reading a wrong place.
    for port in &readings.ports {
        assert_eq!(port.devcap2, Some(DevCap2(0x0030_0020)), "{port:?}");
    }
}

#[test]
fn a_real_guest_that_has_not_started_is_not_ready() {
    let qemu = RealQemu::start(&["-machine", "q35", "-S"]);
    let error =
        verify::readings(&qemu.socket(), Instant::now() + Duration::from_secs(2)).unwrap_err();
    match error {
        VerifyError::NotReady {
            reason: NotReady::WindowClosed,
            status,
            ..
        } => assert_eq!(status, "prelaunch"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_real_i440fx_has_no_window() {
    let qemu = RealQemu::start(&["-machine", "pc"]);
    let error = verify::readings(&qemu.socket(), patient()).unwrap_err();
    assert!(matches!(error, VerifyError::NoWindow), "{error:?}");
}

#[test]
fn a_real_qemu_serves_one_client_at_a_time() {
    let qemu = RealQemu::start(&["-machine", "pc", "-S"]);
    let first = Client::connect(&qemu.socket(), patient()).unwrap();
    let error =
        Client::connect_within(&qemu.socket(), patient(), Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, QmpError::Busy { .. }), "{error:?}");
    drop(first);
    Client::connect(&qemu.socket(), patient()).unwrap();
}
