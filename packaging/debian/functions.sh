# Shared by the maintainer scripts; packaging/build puts it in the place of "#FUNCTIONS#".
#
# /etc/pve is a FUSE file system that may be absent, empty, read-only or not answering, and snippets may lie on a
# network file system. None of that may fail or hang dpkg: whatever touches them runs through `bounded`.

root=${DPKG_ROOT:-}
state=$root/var/lib/pve-atomicops
# Snippets that `attach` or these scripts wrote, in the format of sha256sum: what we wrote, and where.
record=$state/snippets
etc_pve=$root/etc/pve

say() {
	echo "pve-atomicops: $*"
}

# bounded COMMAND...: runs it in the background, shows its output, and gives up after ten seconds with status 1. A
# process that waits for a file system that does not answer may be beyond any signal, so it is never waited for.
bounded() {
	if ! work=$(mktemp -d); then
		say "cannot make a temporary directory"
		return 1
	fi
	(
		"$@" >"$work/out" 2>"$work/err" || :
		: >"$work/done"
	) </dev/null >/dev/null 2>&1 &
	child=$!
	tries=100
	while [ ! -e "$work/done" ] && [ "$tries" -gt 0 ]; do
		sleep 0.1
		tries=$((tries - 1))
	done
	cat "$work/out" "$work/err" 2>/dev/null || :
	timed_out=0
	if [ ! -e "$work/done" ]; then
		kill -KILL "$child" 2>/dev/null || :
		say "no answer from $etc_pve or a storage within ten seconds"
		timed_out=1
	fi
	rm -rf "$work" || :
	return "$timed_out"
}

# digest FILE: the SHA-256 of a regular file, nothing for anything else.
digest() {
	if [ -f "$1" ] && [ ! -L "$1" ]; then
		sha256sum <"$1" | cut -d ' ' -f 1
	fi
}

# recorded COMMAND...: calls it with SHA256 and PATH for each line of the record.
recorded() {
	[ -f "$record" ] || return 0
	while read -r sum path; do
		path=${path#\*}
		case $path in
		/*) "$@" "$sum" "$path" ;;
		esac
	done <"$record"
}

# references: "NODE COMMAND ID SECTION FILE" for every hookscript line of a guest on any node; FILE is the snippet's
# name, SECTION is "-" for the guest itself, else a snapshot or PENDING. Fails if it cannot tell.
references() {
	[ -e "$etc_pve" ] || return 0
	# Without the cluster file system /etc/pve is an empty directory, which says nothing about guests.
	[ -d "$etc_pve/nodes" ] && cd "$etc_pve/nodes" || return 1
	set --
	for file in */qemu-server/*.conf */lxc/*.conf; do
		[ ! -f "$file" ] || set -- "$@" "$file"
	done
	[ "$#" -gt 0 ] || return 0
	found=0
	lines=$(grep -H -E '^(\[|hookscript:)' -- "$@") || found=$?
	[ "$found" -le 1 ] || return 1
	printf '%s\n' "$lines" | awk '
		{
			colon = index($0, ":"); file = substr($0, 1, colon - 1); line = substr($0, colon + 1)
			if (file != last) { section = "-"; last = file }
		}
		line ~ /^\[/ { section = line; gsub(/^\[|\][ \t\r]*$/, "", section); gsub(/[ \t]/, "_", section); next }
		line ~ /^hookscript:/ {
			sub(/^hookscript:[ \t]*/, "", line); sub(/[ \t\r]+$/, "", line); sub(/.*\//, "", line)
			split(file, part, "/"); id = part[3]; sub(/\.conf$/, "", id)
			print part[1], (part[2] == "lxc" ? "pct" : "qm"), id, section, line
		}'
}
