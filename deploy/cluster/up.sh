#!/bin/bash
# Three or more servers from nothing: Ceph, Redis Cluster, etcd and dieselfs on each of them, as services of systemd.
#
#     PACKAGE=dieselfs-0.1.0-py3-none-any.whl DEVICE=/dev/nvme0n1 deploy/cluster/up.sh 10.0.0.5 10.0.0.6 10.0.0.7
#
# Run it once, on the administrator's machine, with new Debian or Ubuntu hosts that root can reach by SSH. It installs what
# they lack. Each step stops at the first error. The secrets are made here, in SECRETS, and copied to the hosts; this
# machine needs openssl, and Debian's packages ceph-common and ceph-base.
#
#   ON       how to run a command on a host (ssh -l root); the address and the command follow
#   PACKAGE  the wheel to install, or a folder with it and all it needs (install.sh); empty: it is in /opt/dieselfs
#   DEVICE   the disk for Ceph on each host, which must be empty; without one, Ceph has memory only, to try it out
#   SECRETS  a folder for the keys (./cluster); afterwards it has admin.key, and client/ with what clients need
set -euo pipefail
umask 077
[ $# -ge 3 ] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 1; }
HOSTS=("$@")
ON=${ON:-ssh -l root}
PACKAGE=${PACKAGE:-}
DEVICE=${DEVICE:-}
SECRETS=${SECRETS:-./cluster}
UNITS=$(dirname "$0")/../systemd
FIRST=${HOSTS[0]}

say() { echo "$(date +%T) $*" >&2; }
for tool in openssl ceph-authtool monmaptool; do
    command -v "$tool" > /dev/null || { say "$tool is missing here: install openssl, ceph-common and ceph-base"; exit 1; }
done
# on ADDRESS WORD...: runs the script on standard input there, with these words as $1, $2, ...
on() { local host=$1; shift; $ON "$host" bash --norc -euo pipefail -s -- "$@"; }
# put ADDRESS FILE OWNER MODE: standard input becomes the file; nobody else can read it meanwhile.
put() { $ON "$1" bash --norc -euc "'umask 022; mkdir -p \$(dirname $2); umask 077; cat > $2.new; chown $3 $2.new; chmod $4 $2.new; mv $2.new $2'"; }
# joined PREFIX SUFFIX: PREFIX ADDRESS SUFFIX of all hosts, joined by commas.
joined() { local all; all=$(printf ",$1%s$2" "${HOSTS[@]}"); echo "${all:1}"; }
# everywhere SCRIPT...: the function runs for each host at the same time; fails if one fails.
everywhere() {
    local host jobs=() failed=0
    for host in "${HOSTS[@]}"; do "$@" "$host" & jobs+=($!); done
    for job in "${jobs[@]}"; do wait "$job" || failed=1; done
    return "$failed"
}

install_packages() {
    on "$1" <<'SCRIPT'
missing=
command -v redis-server > /dev/null || missing="$missing redis-server"
command -v redis-cli > /dev/null || missing="$missing redis-tools"
command -v etcd > /dev/null || missing="$missing etcd-server"
command -v etcdctl > /dev/null || missing="$missing etcd-client"
command -v ceph-mon > /dev/null || missing="$missing ceph-mon"
command -v ceph-osd > /dev/null || missing="$missing ceph-osd"
command -v ceph > /dev/null || missing="$missing ceph-common"
python3 -c 'import ensurepip, venv' 2> /dev/null || missing="$missing python3-venv"
ls /usr/lib/python3/dist-packages/rados* > /dev/null 2>&1 || missing="$missing python3-rados"
if [ -n "$missing" ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
    systemctl disable --quiet --now redis-server etcd 2> /dev/null || true # as Debian starts them: alone
fi
id dieselfs > /dev/null 2>&1 || useradd --system dieselfs
SCRIPT
    [ -z "$PACKAGE" ] || ON=$ON PACKAGE=$PACKAGE "$(dirname "$0")/install.sh" "$1"
}

# -- Certificates: an authority, whose key stays in SECRETS, and a certificate of it for each service of each host ----

# signed NAME OPTION...: makes NAME.key and NAME.pem, unless they are there.
signed() {
    local name=$1 key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes); shift
    [ -e "$name.pem" ] && return
    openssl req -x509 "${key[@]}" -days 3650 -keyout "$name.key" -out "$name.pem.new" "$@" 2> "$name.log" ||
        { cat "$name.log" >&2; return 1; }
    mv "$name.pem.new" "$name.pem"
    rm "$name.log"
}

make_authority() { signed "$SECRETS/ca" -subj "/CN=dieselfs cluster" -addext keyUsage=critical,keyCertSign; }

# certify ADDRESS SERVICE: /etc/SERVICE/tls there has ca.pem, own.pem and own.key for the user SERVICE.
certify() {
    local name=$SECRETS/tls/$2-$1 place=/etc/$2/tls
    signed "$name" -subj "/CN=$2" -CA "$SECRETS/ca.pem" -CAkey "$SECRETS/ca.key" \
        -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=IP:$1"
    put "$1" "$place/ca.pem" root 644 < "$SECRETS/ca.pem"
    put "$1" "$place/own.pem" root 644 < "$name.pem"
    put "$1" "$place/own.key" "$2" 400 < "$name.key"
}

# -- Ceph: a monitor and a disk on each host; three copies of each object, two of them are enough to go on ------------

make_ceph_secrets() {
    local keyring=$SECRETS/ceph.keyring number=0
    [ -e "$keyring" ] && return
    local all=(--cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *')
    ceph-authtool --create-keyring "$keyring.new" --gen-key -n mon. --cap mon 'allow *' > /dev/null
    ceph-authtool "$keyring.new" --gen-key -n client.admin "${all[@]}"
    ceph-authtool "$keyring.new" --gen-key -n client.dieselfs --cap mon 'allow r' --cap osd 'allow rw pool=dieselfs'
    for host in "${HOSTS[@]}"; do
        ceph-authtool "$keyring.new" --gen-key -n "osd.$number" --cap mon 'allow profile osd' --cap osd 'allow *'
        cat /proc/sys/kernel/random/uuid > "$SECRETS/osd.$number"
        number=$((number + 1))
    done
    fsid=$(cat /proc/sys/kernel/random/uuid)
    cat > "$SECRETS/ceph.conf" <<END
[global]
fsid = $fsid
mon_host = $(joined '' '')
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 3
osd_pool_default_min_size = 2
osd_pool_default_pg_autoscale_mode = off
# A lost disk holds up the reads of its objects until Ceph notices. It must take less than the patience of readers (25 s).
osd_heartbeat_interval = 1
osd_heartbeat_grace = 6
mon_osd_adjust_heartbeat_grace = false
mon_data_avail_crit = 1
END
    if [ -z "$DEVICE" ]; then
        printf 'osd_objectstore = memstore\nmemstore_device_bytes = 1073741824\n' >> "$SECRETS/ceph.conf"
    fi
    local monitors=() number=0
    for host in "${HOSTS[@]}"; do monitors+=(--addv "$number" "[v2:$host:3300,v1:$host:6789]"); number=$((number + 1)); done
    monmaptool --create --fsid "$fsid" "${monitors[@]}" "$SECRETS/monmap" > /dev/null
    mv "$keyring.new" "$keyring"
}

start_monitor() {
    put "$1" /etc/ceph/ceph.conf root 644 < "$SECRETS/ceph.conf"
    put "$1" /etc/ceph/ceph.keyring ceph 600 < "$SECRETS/ceph.keyring"
    put "$1" /etc/ceph/monmap ceph 600 < "$SECRETS/monmap"
    ceph-authtool "$SECRETS/ceph.keyring" -p -n client.dieselfs | sed 's/^/[client.dieselfs]\n\tkey = /' |
        put "$1" /etc/ceph/ceph.client.dieselfs.keyring dieselfs 400
    on "$1" "$(number_of "$1")" <<'SCRIPT'
folder=/var/lib/ceph/mon/ceph-$1
if [ ! -e "$folder/done" ]; then
    install -d -o ceph -g ceph "$folder"
    runuser -u ceph -- ceph-mon --mkfs -i "$1" --monmap /etc/ceph/monmap --keyring /etc/ceph/ceph.keyring
    runuser -u ceph -- touch "$folder/done"
fi
systemctl enable --quiet --now "ceph-mon@$1"
SCRIPT
}

# Ceph numbers the disks in the order in which it hears of them.
register_disks() {
    local identities
    identities=$(for host in "${HOSTS[@]}"; do cat "$SECRETS/osd.$(number_of "$host")"; done)
    on "$FIRST" $identities <<'SCRIPT'
for identity in "$@"; do
    ceph --connect-timeout 60 --keyring /etc/ceph/ceph.keyring osd new "$identity" > /dev/null
done
SCRIPT
}

start_disk() {
    on "$1" "$(number_of "$1")" "$(cat "$SECRETS/osd.$(number_of "$1")")" "$DEVICE" <<'SCRIPT'
number=$1 identity=$2 device=${3:-} folder=/var/lib/ceph/osd/ceph-$1
if [ ! -e "$folder/ready" ]; then
    install -d -o ceph -g ceph "$folder"
    if [ -n "$device" ]; then
        ! blkid "$device" || { echo "$device has content: wipefs --all $device" >&2; exit 1; }
        ln -sf "$device" "$folder/block"
        chown -h ceph:ceph "$folder/block" "$device"
        mkdir -p /etc/udev/rules.d # for the next start of the machine
        echo "SUBSYSTEM==\"block\", KERNEL==\"${device#/dev/}\", OWNER=\"ceph\", GROUP=\"ceph\"" > /etc/udev/rules.d/99-ceph-dieselfs.rules
    fi
    ceph-authtool /etc/ceph/ceph.keyring -p -n "osd.$number" | sed "s/^/[osd.$number]\n\tkey = /" > "$folder/keyring"
    chown ceph:ceph "$folder/keyring"
    runuser -u ceph -- ceph-osd --mkfs -i "$number" --osd-uuid "$identity"
fi
systemctl enable --quiet --now "ceph-osd@$number"
SCRIPT
}

make_pool() {
    on "$FIRST" "${#HOSTS[@]}" <<'SCRIPT'
ceph() { command ceph --connect-timeout 60 --keyring /etc/ceph/ceph.keyring "$@"; }
for _ in $(seq 240); do
    ceph osd stat | grep -qw "$1 up" && break
    sleep 0.5
done
ceph osd stat | grep -qw "$1 up" || { echo "not all disks of Ceph are up: see 'journalctl -u ceph-osd@*'" >&2; exit 1; }
ceph osd pool ls | grep -qx dieselfs || ceph osd pool create dieselfs 32 2> /dev/null
SCRIPT
}

# -- Redis Cluster: on each host a master, and a replica of another host's master; both ends show a certificate -------

start_redis() {
    local port
    certify "$1" redis
    for port in 6379 6380; do
        put "$1" "/etc/redis/redis-$port.conf" redis 600 <<END
bind $1
port 0
tls-port $port
tls-cluster yes
tls-replication yes
tls-ca-cert-file /etc/redis/tls/ca.pem
tls-cert-file /etc/redis/tls/own.pem
tls-key-file /etc/redis/tls/own.key
cluster-enabled yes
cluster-config-file nodes-$port.conf
cluster-node-timeout 5000
dir /var/lib/redis
dbfilename dump-$port.rdb
appendonly yes
appenddirname append-$port
appendfsync everysec
maxmemory-policy noeviction
user default on >$(cat "$SECRETS/redis-admin") ~* &* +@all
user dieselfs on >$(cat "$SECRETS/redis-password") resetchannels ~dieselfs:* -@all +evalsha +script|load +hget +hmget +hgetall +hset +hdel +hincrby +exists +zadd +zrem +zrangebylex +unlink +ping +cluster|slots
masteruser default
masterauth $(cat "$SECRETS/redis-admin")
END
    done
    on "$1" <<'SCRIPT'
chown redis:redis /etc/redis # Redis writes its configuration beside the file
install -d -o redis -g redis -m 750 /var/lib/redis
systemctl enable --quiet --now redis-server@6379 redis-server@6380
SCRIPT
}

join_redis() {
    on "$FIRST" $(printf '%s:6379 %s:6380 ' $(printf '%s ' "${HOSTS[@]}" | awk '{ for (i = 1; i <= NF; i++) print $i, $i }')) <<SCRIPT
export REDISCLI_AUTH=$(cat "$SECRETS/redis-admin")
tls=/etc/redis/tls
redis-cli() { command redis-cli --tls --cacert \$tls/ca.pem --cert \$tls/own.pem --key \$tls/own.key "\$@"; }
redis-cli -h $FIRST cluster info | grep -q cluster_state:ok && exit
# What an interrupted run has joined is empty, and joined again.
for node in "\$@"; do redis-cli -h "\${node%:*}" -p "\${node#*:}" cluster reset > /dev/null || true; done
redis-cli --cluster create "\$@" --cluster-replicas 1 --cluster-yes > /dev/null
for _ in \$(seq 300); do
    redis-cli -h $FIRST cluster info | grep -q cluster_state:ok && exit
    sleep 0.2
done
echo "Redis Cluster does not get ready: see 'journalctl -u redis-server@6379'" >&2
exit 1
SCRIPT
}

# -- etcd: members show each other a certificate; servers and clients are users with a password -----------------------

start_etcd() {
    local members=() host
    for host in "${HOSTS[@]}"; do members+=("server-$(number_of "$host")=https://$host:2380"); done
    certify "$1" etcd
    put "$1" /etc/default/etcd root 644 <<END
ETCD_NAME=server-$(number_of "$1")
ETCD_DATA_DIR=/var/lib/etcd/dieselfs
ETCD_LISTEN_PEER_URLS=https://$1:2380
ETCD_INITIAL_ADVERTISE_PEER_URLS=https://$1:2380
ETCD_LISTEN_CLIENT_URLS=https://$1:2379
ETCD_ADVERTISE_CLIENT_URLS=https://$1:2379
ETCD_INITIAL_CLUSTER=$(IFS=,; echo "${members[*]}")
ETCD_INITIAL_CLUSTER_TOKEN=dieselfs
ETCD_PEER_CLIENT_CERT_AUTH=true
ETCD_PEER_TRUSTED_CA_FILE=/etc/etcd/tls/ca.pem
ETCD_PEER_CERT_FILE=/etc/etcd/tls/own.pem
ETCD_PEER_KEY_FILE=/etc/etcd/tls/own.key
ETCD_CERT_FILE=/etc/etcd/tls/own.pem
ETCD_KEY_FILE=/etc/etcd/tls/own.key
# The passwords are random and long: a slow hash would not protect them better, and delay each client.
ETCD_BCRYPT_COST=4
END
    echo 'install -d -o etcd -g etcd -m 700 /var/lib/etcd; systemctl enable --quiet --now etcd' | on "$1"
}

make_etcd_users() {
    on "$FIRST" <<SCRIPT
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=https://$FIRST:2379 ETCDCTL_CACERT=/etc/etcd/tls/ca.pem
# Not before users are required: etcdctl would warn.
etcdctl role list > /dev/null 2>&1 || export ETCDCTL_USER=root:$(cat "$SECRETS/etcd-root")
user() {
    etcdctl role list | grep -x "\$1" || etcdctl role add "\$1"
    etcdctl user list | grep -x "\$1" || echo "\$2" | etcdctl user add "\$1" --interactive=false
    etcdctl user grant-role "\$1" "\$1"
}
{
    user root $(cat "$SECRETS/etcd-root")
    user dieselfs-server $(cat "$SECRETS/etcd-server")
    user dieselfs-client $(cat "$SECRETS/client/etcd-password")
    etcdctl role grant-permission dieselfs-server --prefix=true read /dieselfs/config/
    etcdctl role grant-permission dieselfs-server --prefix=true readwrite /dieselfs/servers/
    etcdctl role grant-permission dieselfs-client --prefix=true read /dieselfs/servers/
    etcdctl auth enable
} > /dev/null
SCRIPT
}

# -- dieselfs ---------------------------------------------------------------------------------------------------------

configure_server() {
    local tls=/etc/dieselfs/tls files unit
    files="ca_file=$tls/ca.pem&certificate_file=$tls/own.pem&key_file=$tls/own.key"
    certify "$1" dieselfs
    put "$1" /etc/dieselfs/redis-password dieselfs 400 < "$SECRETS/redis-password"
    put "$1" /etc/dieselfs/etcd-password dieselfs 400 < "$SECRETS/etcd-server"
    put "$1" /etc/dieselfs/server.toml root 644 <<END
listen = ["tcp://$1:7070", "unix:/run/dieselfs/server.sock"]
store = "rados://dieselfs"
metadata = "rediss+cluster://dieselfs@$(joined '' ':6379')?password_file=/etc/dieselfs/redis-password&$files"
state = "/var/lib/dieselfs/state"
etcd = "$(joined '' ':2379')"
etcd_user = "dieselfs-server"
etcd_password_file = "/etc/dieselfs/etcd-password"
etcd_tls_ca = "$tls/ca.pem"
admin_key = "/etc/dieselfs/keys/admin.key"
metrics = "127.0.0.1:9568"
END
    for unit in "$UNITS"/dieselfs-{server.service,purge.service,purge.timer,fsck.service,fsck.timer,backup.service,backup.timer}; do
        put "$1" "/etc/systemd/system/$(basename "$unit")" root 644 < "$unit"
    done
    echo systemctl daemon-reload | on "$1"
}

start_first_server() {
    on "$FIRST" <<'SCRIPT'
if [ ! -e /etc/dieselfs/keys/admin.key ]; then
    install -d -o dieselfs -m 700 /var/lib/dieselfs /etc/dieselfs/keys /run/dieselfs
    setpriv --reset-env --reuid dieselfs --regid dieselfs --init-groups /opt/dieselfs/bin/dieselfs-server --config /etc/dieselfs/server.toml --init-only
fi
systemctl enable --quiet --now dieselfs-server
systemctl enable --quiet --now dieselfs-purge.timer dieselfs-fsck.timer dieselfs-backup.timer
SCRIPT
    $ON "$FIRST" cat /etc/dieselfs/keys/admin.key > "$SECRETS/admin.key"
}

start_server() { echo systemctl enable --quiet --now dieselfs-server | on "$1"; }

# The folder that becomes ~/.config/dieselfs of a user.
write_client() {
    cp "$SECRETS/ca.pem" "$SECRETS/client/ca.pem"
    cat > "$SECRETS/client/config.toml" <<END
server = "etcd://$(joined '' ':2379')"
etcd_user = "dieselfs-client"
etcd_password_file = "~/.config/dieselfs/etcd-password"
etcd_tls_ca = "~/.config/dieselfs/ca.pem"
END
}

number_of() {
    local number=0 host
    for host in "${HOSTS[@]}"; do [ "$host" != "$1" ] || echo "$number"; number=$((number + 1)); done
}

mkdir -p "$SECRETS/client" "$SECRETS/tls"
for name in redis-password redis-admin etcd-root etcd-server client/etcd-password; do
    [ -e "$SECRETS/$name" ] || head -c 32 /dev/urandom | base64 | tr -d '/+=\n' > "$SECRETS/$name"
done
say "packages"
everywhere install_packages
make_authority
say "Ceph"
make_ceph_secrets
everywhere start_monitor
register_disks
everywhere start_disk
make_pool
say "Redis Cluster"
everywhere start_redis
join_redis
say "etcd"
everywhere start_etcd
make_etcd_users
say "dieselfs"
everywhere configure_server
start_first_server
everywhere start_server
write_client
say "done: copy the files of $SECRETS/client to ~/.config/dieselfs of each user; the administrator's key is $SECRETS/admin.key"
