//! Changes a VM's own `chain` in the text of a policy file, and leaves every other byte as it is.
//!
//! Proxmox allows one hookscript for each VM. One that the VM has already moves to the front of `[vm.VMID] chain`, and
//! back again. Pure: takes a text and gives a new one, or none where nothing changes.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, TomlError, Value};

use crate::vmconf::Vmid;

/// What a policy file begins with that is made here.
const HEADER: &str = "# Policy of pve-atomicops for this node: see pve-atomicops.toml(5).\n\n";

/// The chain that this file sets for one VM alone; none where it sets none.
pub fn own(text: &str, vmid: Vmid) -> Result<Option<Vec<String>>, TomlError> {
    let document: DocumentMut = text.parse()?;
    let chain = document
        .get("vm")
        .and_then(|vms| vms.get(vmid.to_string()))
        .and_then(|vm| vm.get("chain"))
        .and_then(Item::as_array);
    Ok(chain.map(|chain| {
        let scripts = chain.iter().filter_map(Value::as_str);
        scripts.map(str::to_owned).collect()
    }))
}

/// Puts a script in front of the VM's chain. Where the VM has no chain of its own in this file, it gets one that goes
/// on with `inherited`, the chain in force for it: a chain of its own takes the place of all others.
pub fn prepend(
    text: &str,
    vmid: Vmid,
    script: &str,
    inherited: &[String],
) -> Result<Option<String>, TomlError> {
    if let Some(scripts) = own(text, vmid)? {
        if scripts.iter().any(|present| present == script) {
            return Ok(None);
        }
    } else if inherited.iter().any(|present| present == script) {
        return Ok(None);
    }
    let mut document: DocumentMut = text.parse()?;
    let id = vmid.to_string();
    let scripts: Array = [script]
        .into_iter()
        .chain(inherited.iter().map(String::as_str))
        .collect();
    let has_table = document.get("vm").is_some_and(|vms| vms.get(&id).is_some());
    if !has_table {
        // Behind everything else, so that comments at the end stay where they are.
        let appended = with_table(text, vmid, scripts.clone());
        // `vm = { ... }` takes no further table.
        if appended.parse::<DocumentMut>().is_ok() {
            return Ok(Some(appended));
        }
    }
    let Some(vm) = vm_table(document.as_table_mut(), vmid) else {
        return Ok(None);
    };
    if let Some(chain) = vm.get_mut("chain").and_then(Item::as_array_mut) {
        insert_first(chain, script);
    } else {
        vm.insert("chain", Item::Value(Value::Array(scripts)));
    }
    Ok(Some(document.to_string()))
}

/// Takes a script out of the VM's own chain. A chain that then says no more than `inherited` goes as a whole, and so does
/// a table without keys and comments.
pub fn remove(
    text: &str,
    vmid: Vmid,
    script: &str,
    inherited: &[String],
) -> Result<Option<String>, TomlError> {
    let Some(scripts) = own(text, vmid)? else {
        return Ok(None);
    };
    let Some(at) = scripts.iter().position(|present| present == script) else {
        return Ok(None);
    };
    let mut document: DocumentMut = text.parse()?;
    let id = vmid.to_string();
    let Some(vms) = document.get_mut("vm").and_then(Item::as_table_like_mut) else {
        return Ok(None);
    };
    if let Some(vm) = vms.get_mut(&id).and_then(Item::as_table_like_mut) {
        let rest: Vec<_> = scripts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, script)| script)
            .collect();
        // An empty chain of its own is not the same as none: it keeps the scripts of all VMs from this one.
        if rest.into_iter().eq(inherited) {
            vm.remove("chain");
        } else if let Some(chain) = vm.get_mut("chain").and_then(Item::as_array_mut) {
            chain.remove(at);
            if at == 0
                && let Some(first) = chain.get_mut(0)
            {
                tidy_first(first);
            }
        }
    }
    let bare = vms
        .get(&id)
        .and_then(Item::as_table)
        .is_some_and(Table::is_empty);
    let new = document.to_string();
    Ok(Some(if bare {
        without_header(&new, vmid)
    } else {
        new
    }))
}

/// The text without the header of a table that has no keys, unless a comment right above or behind it belongs to it.
fn without_header(text: &str, vmid: Vmid) -> String {
    let header = format!("[vm.{vmid}]");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let Some(at) = lines.iter().position(|line| line.trim_end() == header) else {
        return text.to_owned();
    };
    let above = at.checked_sub(1).and_then(|above| lines.get(above));
    if above.is_some_and(|line| line.trim_start().starts_with('#')) {
        return text.to_owned();
    }
    // The blank line that set the table apart goes with it.
    let apart = above.is_some_and(|line| line.trim().is_empty()) && at + 1 == lines.len();
    let first = if apart { at - 1 } else { at };
    let kept = lines
        .iter()
        .enumerate()
        .filter(|(line, _)| !(first..=at).contains(line));
    kept.map(|(_, line)| *line).collect()
}

/// The text with a new table at its end.
fn with_table(text: &str, vmid: Vmid, chain: Array) -> String {
    let mut new = if text.is_empty() { HEADER } else { text }.to_owned();
    if !new.ends_with('\n') {
        new.push('\n');
    }
    if !new.ends_with("\n\n") {
        new.push('\n');
    }
    let chain = Value::Array(chain);
    new + &format!("[vm.{vmid}]\nchain = {chain}\n")
}

/// The VM's table, made where it is missing. None where something else has its name, which the policy's own reader
/// refuses before.
fn vm_table(root: &mut Table, vmid: Vmid) -> Option<&mut dyn TableLike> {
    let vms = root
        .entry("vm")
        .or_insert_with(|| Item::Value(Value::InlineTable(InlineTable::new())))
        .as_table_like_mut()?;
    vms.entry(&vmid.to_string())
        .or_insert_with(|| Item::Value(Value::InlineTable(InlineTable::new())))
        .as_table_like_mut()
}

/// Inserts a script as the first one, laid out as the array is: on the line, or on a line of its own.
fn insert_first(chain: &mut Array, script: &str) {
    let mut value = Value::from(script);
    if let Some(second) = chain.get_mut(0) {
        let prefix = second
            .decor()
            .prefix()
            .and_then(|prefix| prefix.as_str())
            .unwrap_or_default()
            .to_owned();
        if prefix.is_empty() {
            second.decor_mut().set_prefix(" ");
        }
        value.decor_mut().set_prefix(prefix);
    }
    chain.insert_formatted(0, value);
}

/// The blank that separated a value from the one before has no place behind the bracket.
fn tidy_first(first: &mut Value) {
    let blank = first
        .decor()
        .prefix()
        .and_then(|prefix| prefix.as_str())
        .is_some_and(|prefix| prefix == " ");
    if blank {
        first.decor_mut().set_prefix("");
    }
}

#[cfg(test)]
mod tests {
    use super::{own, prepend, remove};
    use crate::settings::Policy;
    use crate::vmconf::Vmid;

    const OLD: &str = "local:snippets/old.sh";

    fn vmid() -> Vmid {
        Vmid::new(101).unwrap()
    }

    fn added(text: &str, inherited: &[&str]) -> String {
        let inherited: Vec<_> = inherited.iter().map(ToString::to_string).collect();
        let new = prepend(text, vmid(), OLD, &inherited)
            .unwrap()
            .expect("a change");
        Policy::parse("policy", &new).expect("a policy");
        assert_eq!(
            prepend(&new, vmid(), OLD, &inherited).unwrap(),
            None,
            "twice"
        );
        new
    }

    fn removed(text: &str, inherited: &[&str]) -> String {
        let inherited: Vec<_> = inherited.iter().map(ToString::to_string).collect();
        let new = remove(text, vmid(), OLD, &inherited)
            .unwrap()
            .expect("a change");
        Policy::parse("policy", &new).expect("a policy");
        assert_eq!(
            remove(&new, vmid(), OLD, &inherited).unwrap(),
            None,
            "twice"
        );
        new
    }

    #[test]
    fn a_new_file_says_what_it_is() {
        assert_eq!(
            added("", &[]),
            "# Policy of pve-atomicops for this node: see pve-atomicops.toml(5).\n\n\
             [vm.101]\nchain = [\"local:snippets/old.sh\"]\n"
        );
    }

    #[test]
    fn all_else_stays_byte_for_byte() {
        let text = "# ours\nmode   = 'abort'  # strict\n\n[vm.100]\nmode='off'\n";
        let new = added(text, &[]);
        assert!(new.starts_with(text), "{new}");
        assert_eq!(removed(&new, &[]), text);
    }

    #[test]
    fn a_chain_keeps_its_layout() {
        for (before, after) in [
            (
                "[vm.101]\nchain = [\"/a\"] # why\n",
                "[vm.101]\nchain = [\"local:snippets/old.sh\", \"/a\"] # why\n",
            ),
            (
                "[vm.101]\nchain = [\n  \"/a\", # first\n  \"/b\",\n]\n",
                "[vm.101]\nchain = [\n  \"local:snippets/old.sh\",\n  \"/a\", # first\n  \"/b\",\n]\n",
            ),
            (
                "vm.101 = { chain = [\"/a\"], mode = \"off\" }\n",
                "vm.101 = { chain = [\"local:snippets/old.sh\", \"/a\"], mode = \"off\" }\n",
            ),
        ] {
            assert_eq!(added(before, &[]), after);
            assert_eq!(removed(after, &[]), before);
        }
    }

    #[test]
    fn comments_at_the_end_stay_there() {
        let text = "# only\n# comments";
        let new = added(text, &[]);
        assert_eq!(new, format!("{text}\n\n[vm.101]\nchain = [\"{OLD}\"]\n"));
        let inline = "vm = { 100 = { mode = 'off' } }\n";
        let new = added(inline, &[]);
        assert_eq!(own(&new, vmid()).unwrap().unwrap(), [OLD]);
    }

    #[test]
    fn a_table_with_other_keys_or_comments_stays() {
        let text = "[vm.101]\nmode = \"off\"\n";
        let new = added(text, &[]);
        assert_eq!(new, format!("{text}chain = [\"{OLD}\"]\n"));
        assert_eq!(removed(&new, &[]), text);
        let commented = format!("# the trainer\n[vm.101]\nchain = [\"{OLD}\"]\n");
        assert_eq!(removed(&commented, &[]), "# the trainer\n[vm.101]\n");
        let bare = format!("[vm.101]\nchain = [\"{OLD}\"]\n");
        assert_eq!(removed(&bare, &[]), "");
        let between = format!("{bare}\n[vm.102]\nmode = \"off\"\n");
        assert_eq!(removed(&between, &[]), "\n[vm.102]\nmode = \"off\"\n");
        // What a new file begins with stays.
        assert_eq!(
            removed(&added("", &[]), &[]),
            super::HEADER.trim_end().to_owned() + "\n"
        );
    }

    #[test]
    fn a_chain_in_force_goes_on() {
        let text = "chain = [\"/all\"]\n";
        let new = added(text, &["/all"]);
        assert_eq!(own(&new, vmid()).unwrap().unwrap(), [OLD, "/all"]);
        assert_eq!(removed(&new, &["/all"]), text);
        // The inherited chain has it already: nothing to do.
        assert_eq!(prepend(text, vmid(), OLD, &[OLD.to_owned()]).unwrap(), None);
    }

    #[test]
    fn nothing_of_ours_is_nothing_to_remove() {
        for text in ["", "mode = \"off\"\n", "[vm.101]\nchain = [\"/a\"]\n"] {
            assert_eq!(remove(text, vmid(), OLD, &[]).unwrap(), None, "{text}");
        }
    }
}
