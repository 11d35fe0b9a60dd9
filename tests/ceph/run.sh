#!/usr/bin/env bash
# A volume on a Ceph cluster of this machine: a monitor, three OSDs that store their data in memory, and an RBD image with three copies,
# which qemu-nbd serves. The script kills and restarts the OSDs and the server while the volume is written.
#
# run.sh [ROUNDS]
#
# The script needs root for the mounts, ceph-mon, ceph-osd, ceph-common and qemu-block-extra.
source "$(dirname "$0")/../lib.sh"

say ceph
is_root || { skip "ceph: needs root" && exit; }
for program in ceph-mon ceph-osd rbd qemu-nbd; do
    has "$program" || { skip "ceph: needs the program $program" && exit; }
done
find_ironmap
rounds=${1:-1}
tree=$PWD
dir=$(mktemp -d "/dev/shm/ironmap-test-$$-XXXXXX")
cluster=$dir/cluster
image=rbd/volume
socket=$dir/socket
volume="nbd+unix:///?socket=$socket"
export CEPH_CONF=$cluster/ceph.conf

ended() {
    for _ in $(seq 100); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -9 "$1" 2>/dev/null || true
}
stop() {
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    rm -f "$1"
    kill "$pid" 2>/dev/null || return 0
    ended "$pid"
}
clean_up() {
    set +e
    umount -l "$dir/mounted" "$dir/kernel" 2>/dev/null
    stop "$dir/server.pid"
    for pid in "$cluster"/osd.*.pid "$cluster"/mon.*.pid; do stop "$pid"; done
    rm -rf "$dir"
}
trap clean_up EXIT

start_cluster() {
    local id=0 uuid port
    port=$((20000 + $$ % 10000))
    mkdir -p "$cluster/mon"
    uuid=$(cat /proc/sys/kernel/random/uuid)
    # Authentication is off, because no other machine can reach the cluster. An OSD that stores its data in memory loses them when it ends.
    cat > "$CEPH_CONF" <<CONF
[global]
fsid = $uuid
mon host = v2:127.0.0.1:$port
mon initial members = a
public network = 127.0.0.0/8
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 3
osd pool default min size = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 1073741824
mon data avail crit = 1
osd class load list = *
osd class default list = *
mon data = $cluster/mon
osd data = $cluster/osd\$id
keyring = $cluster/keyring
log file = $cluster/\$name.log
pid file = $cluster/\$name.pid
admin socket = $cluster/\$name.\$pid.asok
CONF
    ceph-authtool --create-keyring "$cluster/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$cluster/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    monmaptool --create --fsid "$uuid" --addv a "[v2:127.0.0.1:$port]" "$cluster/map"
    ceph-mon --mkfs -i a --monmap "$cluster/map" --keyring "$cluster/keyring"
    ceph-mon -i a
    for id in 0 1 2; do
        mkdir "$cluster/osd$id"
        uuid=$(cat /proc/sys/kernel/random/uuid)
        timeout 60 ceph osd new "$uuid"
        ceph-osd -i "$id" --mkfs --osd-uuid "$uuid"
        ceph-osd -i "$id"
    done
    timeout 60 ceph osd pool create rbd 8
    timeout 60 rbd create --size 512M "$image"
}

serve() {
    rm -f "$socket"
    qemu-nbd --persistent --shared=0 --fork --pid-file="$dir/server.pid" -k "$socket" -f raw "rbd:$image:conf=$CEPH_CONF"
}
kill_server() { kill -9 "$(cat "$dir/server.pid")"; serve; }
kill_osd() {
    kill -9 "$(cat "$cluster/osd.$1.pid")"
    rm -f "$cluster/osd.$1.pid"
    sleep 3
    ceph-osd -i "$1"
}

# Copies the tree while an OSD or the server is stopped, killed or restarted.
copy_while() {
    local into=$1
    shift
    "$ironmap" cp -a "$tree/src" "$volume:/$into" &
    local copying=$!
    for _ in 1 2 3; do
        sleep 0.4
        "$@" >/dev/null 2>&1
    done
    wait "$copying" || die "a copy while '$*' failed"
    "$ironmap" diff "$volume:/$into" "$tree/src" || die "a copy while '$*' differs"
}

use_mount() {
    mkdir -p "$dir/mounted"
    "$ironmap" mount -q "$volume" "$dir/mounted"
    (
        cd "$dir/mounted"
        rm -rf repository db verified
        git -c init.defaultBranch=main init -q repository
        cp -r "$tree/tests" repository
        cd repository
        git add .
        git -c user.name=a -c user.email=a@b commit -qm tests
        git fsck --no-progress
        cd ..
        printf '%s\n' 'create table t(n, text);' 'with recursive c(n) as (values(1) union all select n + 1 from c where n < 20000)' \
            'insert into t select n, hex(n) from c;' 'pragma integrity_check;' | sqlite3 db | grep -qx ok
        fio --name=verified --filename=verified --size=8M --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
            --fsync=64 --verify=crc32c --do_verify=1 --output=/dev/null &
        sleep 1
        kill_server >/dev/null 2>&1
        wait $!
    )
    "$ironmap" umount "$dir/mounted"
}

compare() {
    "$ironmap" check "$volume"
    rm -f "$dir/export"
    rbd export --no-progress "$image" "$dir/export"
    e2fsck -fn "$dir/export" >"$dir/e2fsck" 2>&1 || die "e2fsck: $(cat "$dir/e2fsck")"
    mkdir -p "$dir/kernel"
    mount -o loop,ro "$dir/export" "$dir/kernel"
    for copy in server osd plain; do
        diff -r --no-dereference "$dir/kernel/$copy" "$tree/src" || die "the kernel reads $copy otherwise"
    done
    umount "$dir/kernel"
}

# Do not call these functions with `||`: the shell would then ignore failures of the commands in them.
trap 'echo "$0: line $LINENO failed; the cluster said: $(tail -5 "$dir/start")" >&2' ERR
start_cluster >"$dir/start" 2>&1
serve
"$ironmap" mkfs -q "$volume"
for round in $(seq "$rounds"); do
    "$ironmap" rm -rf "$volume:/plain" "$volume:/server" "$volume:/osd" 2>/dev/null || true
    copy_while plain true
    copy_while server kill_server
    copy_while osd kill_osd 1
    use_mount
    compare
    echo "ceph: round $round: the same tree, nothing found"
done
