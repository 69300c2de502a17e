#!/bin/sh
# Installs, upgrades and removes $1, an .rpm, in a copy of this machine's files. The copy is an
# overlay in the directory $2, so that the scripts of the package have a shell and the programs of
# systemd. Run it in its own mount name space: unshare --mount. With --probe as $1 it only mounts.
set -eu
fail() {
	echo "$1" >&2
	exit 1
}
cd "$2"
mkdir -p upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
[ "$1" != --probe ] || exit 0

# --nodeps: the packages of this system may be those of dpkg.
config=root/etc/simurgh/simurgh.toml
rpm --root="$PWD/root" --install --nodeps "$1"
group=$(sed -n 's/^simurgh:[^:]*:\([0-9]*\):.*/\1/p' root/etc/group)
[ "$(stat -c '%a %u %g' $config)" = "640 0 $group" ] || fail "$(ls -l $config)"
[ -x root/usr/bin/simurgh ] || fail "the program is not there"
echo 'drain_time = "30s"' >> $config
rpm --root="$PWD/root" --upgrade --nodeps --force "$1"
tail -n 1 $config | grep -q 30s || fail "an upgrade took what was changed in the configuration"
rpm --root="$PWD/root" --erase --nodeps simurgh
[ ! -e root/usr/bin/simurgh ] || fail "the program stays"
grep -q 30s $config.rpmsave || fail "the configuration is gone"
