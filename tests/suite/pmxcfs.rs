//! The store on a file system with /etc/pve's rules, and with every one of its operations going wrong.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FlockArg, OFlag, RenameFlags, renameat2};
use nix::sys::stat::Mode;
use pve_atomicops::store::journal::{Digest, History, Journal, Origin, State};
use pve_atomicops::store::replace::{Cause, ReplaceError};
use pve_atomicops::store::tree::Tree;
use pve_atomicops::store::{Rewrite, Rewritten, StoreError, rewrite};

use crate::child::{CONFIG, REFUSED, changes, command, flock, repaired, said, vmid};
use crate::crash::{Outcome, Point, at_every_operation, run};
use crate::fuse::{Action, Mount, PMXCFS_MAX_FILE};

const OLD: &[u8] =
    b"#train\nboot: order=scsi0\nhostpci0: 0000:0b:00,pcie=1,x-vga=on\nmachine: q35\n\
    \n[before-update]\nhostpci0: 0000:0b:00.1\n";
const DIRECTORY: &str = "etc/pve/nodes/pve1/qemu-server";
const JOURNAL: &str = "var/lib/pve-atomicops/journal";

/// A tree as on a node, with VM 101.
fn node(config: &[u8]) -> Mount {
    let mount = Mount::new();
    mount.file(CONFIG, config);
    mount.link("etc/pve/qemu-server", "nodes/pve1/qemu-server");
    mount.directory("run/lock");
    mount.link("var/lock", "/run/lock");
    mount.directory("var/lib");
    mount
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result
        .err()
        .and_then(|error| error.raw_os_error())
        .map(Errno::from_raw)
}

/// Rewrites from within this process.
fn rewrite_here(mount: &Mount, before: &[u8], after: &[u8]) -> Result<Rewritten, StoreError> {
    let tree = Tree::open(mount.path()).expect("tree");
    let change = Rewrite {
        vmid: vmid(),
        node: "pve1",
        origin: Origin::Hook,
        undoes: None,
        before,
        after,
        changes: changes(before, after),
    };
    rewrite(&tree, change, Instant::now())
}

/// What the journal on the mount says, read from a copy.
fn history(mount: &Mount) -> History {
    let Some(content) = mount.content(JOURNAL) else {
        return History::default();
    };
    let root = tempfile::tempdir().expect("directory");
    let path = root.path().join(JOURNAL);
    std::fs::create_dir_all(path.parent().expect("directory")).expect("directory");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .expect("journal");
    file.write_all(&content).expect("journal");
    let tree = Tree::open(root.path()).expect("tree");
    let journal = Journal::open(&tree, Instant::now())
        .expect("journal")
        .expect("there");
    journal.history(vmid()).expect("history")
}

/// Whether the journal would let the repair be taken back, judging by the present digest alone.
fn can_be_undone(mount: &Mount, config: &[u8]) -> bool {
    history(mount)
        .last_edit(Digest::of(config), |_| false)
        .is_some()
}

#[test]
fn the_file_system_keeps_the_rules_of_pmxcfs() {
    let mount = node(OLD);
    let directory = mount.path().join(DIRECTORY);
    let config = directory.join("101.conf");
    let mode = |mode| std::fs::set_permissions(&config, std::fs::Permissions::from_mode(mode));
    let own = |uid, gid| std::os::unix::fs::chown(&config, uid, gid);

    let meta = config.metadata().expect("configuration");
    assert_eq!(
        (meta.mode() & 0o7777, meta.uid(), meta.gid()),
        (0o640, 0, 33)
    );
    assert_eq!(meta.mtime_nsec(), 0);
    assert_eq!(errno(mode(0o600)), Some(Errno::EPERM));
    assert_eq!(errno(mode(0o640)), None);
    assert_eq!(errno(own(Some(0), Some(0))), Some(Errno::EPERM));
    assert_eq!(errno(own(Some(0), Some(33))), None);

    let other = directory.join("other");
    assert_eq!(
        errno(std::fs::hard_link(&config, &other)),
        Some(Errno::EPERM)
    );
    assert_eq!(
        errno(std::os::unix::fs::symlink("101.conf", &other)),
        Some(Errno::ENOSYS)
    );
    let unnamed = nix::fcntl::open(
        &directory,
        OFlag::O_TMPFILE | OFlag::O_WRONLY,
        Mode::from_bits_truncate(0o600),
    );
    assert_eq!(unnamed.err(), Some(Errno::EOPNOTSUPP));
    let attribute = std::process::Command::new("setfattr")
        .args(["-n", "user.x", "-v", "y"])
        .arg(&config)
        .output();
    // Where the tool is installed; nothing of ours uses attributes.
    if let Ok(attribute) = attribute {
        assert!(!attribute.status.success());
    }

    std::fs::write(&other, "x").expect("written");
    assert_eq!(other.metadata().expect("file").mode() & 0o7777, 0o640);
    let root = nix::fcntl::open("/", OFlag::O_PATH, Mode::empty()).expect("root");
    let flagged = |to: &std::path::Path, flags| renameat2(&root, &other, &root, to, flags);
    assert_eq!(
        flagged(&directory.join("free"), RenameFlags::RENAME_NOREPLACE),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        flagged(&config, RenameFlags::RENAME_EXCHANGE),
        Err(Errno::EINVAL)
    );
    std::fs::rename(&other, &config).expect("a plain rename replaces");
    assert_eq!(mount.content(CONFIG), Some(b"x".to_vec()));
    assert!(!other.exists());

    std::fs::write(&other, vec![b'x'; PMXCFS_MAX_FILE]).expect("1 MiB");
    let longer = std::fs::write(&other, vec![b'x'; PMXCFS_MAX_FILE + 1]);
    assert_eq!(errno(longer), Some(Errno::EFBIG));

    mount.quorum(false);
    assert_eq!(
        errno(std::fs::write(directory.join("new"), "x")),
        Some(Errno::EACCES)
    );
    assert_eq!(errno(std::fs::write(&config, "y")), Some(Errno::EACCES));
    assert_eq!(errno(std::fs::rename(&other, &config)), Some(Errno::EACCES));
    assert_eq!(errno(std::fs::remove_file(&config)), Some(Errno::EACCES));
    assert_eq!(
        errno(std::fs::create_dir(directory.join("new"))),
        Some(Errno::EACCES)
    );
    assert_eq!(std::fs::read(&config).expect("reading works"), b"x");
    // Elsewhere quorum does not matter.
    std::fs::write(mount.path().join("run/lock/x"), "x").expect("not on pmxcfs");
}

#[test]
fn a_configuration_is_rewritten() {
    let mount = node(OLD);
    let done = rewrite_here(&mount, OLD, &repaired(OLD)).expect("rewritten");
    assert_eq!(done.number, Some(1));
    assert!(done.doubts.is_empty(), "{:?}", done.doubts);
    let new = mount.content(CONFIG).expect("configuration");
    assert_eq!(new, repaired(OLD));
    assert_eq!(mount.names(DIRECTORY), ["101.conf"]);
    let history = history(&mount);
    assert_eq!(history.entries.len(), 1);
    let entry = history
        .last_edit(Digest::of(&new), |_| false)
        .expect("an edit");
    assert_eq!(entry.state, State::Done);
    assert_eq!(entry.intent.changes, changes(OLD, &new));
    // Once more, from the same bytes: refused, since they are no longer there.
    let again = rewrite_here(&mount, OLD, &repaired(OLD));
    assert!(
        matches!(
            &again,
            Err(StoreError::Replace(ReplaceError {
                cause: Cause::Changed(_),
                ..
            }))
        ),
        "{again:?}"
    );
}

#[test]
fn nothing_happens_where_nothing_changes_or_too_much_would() {
    let mount = node(OLD);
    let same = rewrite_here(&mount, OLD, OLD).expect("nothing to do");
    assert_eq!(same.number, None);
    let wide = rewrite_here(&mount, OLD, &[OLD, b"x"].concat());
    assert!(matches!(wide, Err(StoreError::TooWide)), "{wide:?}");
    assert_eq!(mount.content(CONFIG).as_deref(), Some(OLD));
    assert_eq!(mount.content(JOURNAL), None);
}

#[test]
fn without_quorum_the_old_file_stays_and_the_error_names_pvecm() {
    let mount = node(OLD);
    mount.quorum(false);
    let error = rewrite_here(&mount, OLD, &repaired(OLD)).expect_err("read-only");
    assert!(
        matches!(
            &error,
            StoreError::Replace(ReplaceError {
                cause: Cause::ReadOnly(_),
                ..
            })
        ),
        "{error:?}"
    );
    let text = format!("{:#}", anyhow::Error::from(error));
    assert!(text.contains("pvecm status"), "{text}");
    assert_eq!(mount.content(CONFIG).as_deref(), Some(OLD));
    assert_eq!(mount.names(DIRECTORY), ["101.conf"]);
    assert!(!can_be_undone(&mount, OLD));
    mount.quorum(true);
    rewrite_here(&mount, OLD, &repaired(OLD)).expect("rewritten");
    assert!(can_be_undone(&mount, &repaired(OLD)));
}

#[test]
fn a_configuration_may_have_1_mib_and_no_byte_more() {
    // The repair adds two bytes.
    for (size, fits) in [(PMXCFS_MAX_FILE - 2, true), (PMXCFS_MAX_FILE - 1, false)] {
        let mut old = OLD.to_vec();
        old.extend(std::iter::repeat_n(b"#x\n", (size - OLD.len()) / 3).flatten());
        old.resize(size - 1, b'#');
        old.push(b'\n');
        let mount = node(&old);
        let result = rewrite_here(&mount, &old, &repaired(&old));
        if fits {
            result.expect("rewritten");
            assert!(
                mount
                    .content(CONFIG)
                    .is_some_and(|new| new == repaired(&old))
            );
        } else {
            match result {
                Err(StoreError::Replace(ReplaceError {
                    cause: Cause::TooLarge { size, .. },
                    left_behind: None,
                })) => assert_eq!(size, PMXCFS_MAX_FILE + 1),
                other => panic!("{other:?}"),
            }
            assert!(mount.content(CONFIG).is_some_and(|kept| kept == old));
        }
        assert_eq!(mount.names(DIRECTORY), ["101.conf"]);
    }
}

/// After a fault: the configuration is old or new, and new exactly where success was reported; the journal tells
/// which; and a later run succeeds.
fn judge(mount: &Mount, point: &Point, outcome: &Outcome) {
    let new = repaired(OLD);
    let config = mount.content(CONFIG).expect("the configuration is there");
    let shown = String::from_utf8_lossy(&config).into_owned();
    assert!(config == OLD || config == new, "{point}: {shown}");
    let words = said(&outcome.stdout);
    match outcome.status.code() {
        Some(0) => {
            assert_eq!(words.first(), Some(&"rewritten"), "{point}: {outcome}");
            assert_eq!(config, new, "{point}: {outcome}");
        }
        Some(REFUSED) => {
            assert!(
                words.iter().any(|word| word.starts_with("refused: ")),
                "{point}"
            );
            assert_eq!(config, OLD, "{point}: {outcome}");
        }
        None => assert!(
            matches!(point.action, Action::Kill | Action::DoAndKill),
            "{point}"
        ),
        other => panic!("{point}: {other:?}: {outcome}"),
    }

    let temporary: Vec<_> = mount
        .names(DIRECTORY)
        .into_iter()
        .filter(|name| name != "101.conf")
        .collect();
    match point.action {
        Action::Fail(_) | Action::DoAndFail(_) => {
            assert!(temporary.is_empty(), "{point}: {temporary:?}");
        }
        Action::Kill | Action::DoAndKill | Action::LoseQuorum => {
            assert!(temporary.len() <= 1, "{point}: {temporary:?}");
            assert!(
                temporary
                    .iter()
                    .all(|name| name.starts_with("101.conf.tmp."))
            );
        }
    }
    if let (Action::LoseQuorum, Some(left)) = (point.action, temporary.first()) {
        assert!(outcome.stdout.contains(left), "it is named: {outcome}");
    }

    assert_eq!(
        can_be_undone(mount, &config),
        config == new,
        "{point}: {:?}",
        history(mount)
    );
    assert_eq!(history(mount).unreadable, 0, "{point}");

    mount.quorum(true);
    let later = run(mount, &command("rewrite", mount.path(), &[]));
    assert!(later.status.success(), "{point}: {later}");
    assert_eq!(mount.content(CONFIG), Some(new.clone()), "{point}");
    assert!(can_be_undone(mount, &new), "{point}: {:?}", history(mount));
    assert_eq!(history(mount).unreadable, 0, "{point}");
}

fn sweep(actions: &[Action], prepare: impl Fn() -> Mount) {
    let tried = at_every_operation(
        actions,
        prepare,
        |mount| command("rewrite", mount.path(), &[]),
        judge,
    );
    // Past the test harness, which would only show it after a failure.
    writeln!(
        std::io::stderr(),
        "rewrite: {tried} points tried with {actions:?}"
    )
    .expect("stderr");
    assert!(
        tried >= 50 * actions.len(),
        "only {tried} points: is the mount used at all?"
    );
}

#[test]
fn an_error_at_any_operation_leaves_old_or_new() {
    sweep(
        &[Action::Fail(Errno::EIO), Action::DoAndFail(Errno::EIO)],
        || node(OLD),
    );
}

#[test]
fn a_full_file_system_at_any_operation_leaves_old_or_new() {
    sweep(&[Action::Fail(Errno::ENOSPC)], || node(OLD));
}

#[test]
fn quorum_lost_at_any_operation_leaves_old_or_new() {
    sweep(&[Action::LoseQuorum], || node(OLD));
}

#[test]
fn being_killed_at_any_operation_leaves_old_or_new() {
    sweep(&[Action::Kill, Action::DoAndKill], || node(OLD));
}

#[test]
fn a_fault_under_the_callers_lock_leaves_old_or_new() {
    sweep(&[Action::Fail(Errno::EIO), Action::DoAndKill], || {
        let mount = node(OLD);
        // This process is the parent of the one under test, and holds the lock as Proxmox does.
        mount.keep(flock(mount.path(), FlockArg::LockExclusive));
        mount
    });
}
