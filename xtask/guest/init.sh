#!/bin/sh
# What the guest does: the tests that are in /tests, as root and as a user who was given a control group.
export PATH=/usr/bin:/bin:/sbin HOME=/root
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs run /run
mount -t cgroup2 groups /sys/fs/cgroup
ip link set lo up
modprobe tun
chmod 666 /dev/net/tun
# Only what the tests say.
echo 0 > /proc/sys/kernel/printk
uname -r

# What another kernel, and other control groups, may do otherwise.
tests="limits:: lifecycle:: isolation:: mounts:: volumes:: tied:: network::"

/tests/contract --test-threads 2 $tests 2>&1
echo "KENNEL root $?"

# As systemd does it for those who log in.
cd /sys/fs/cgroup
all="+memory +pids +cpu"
echo "$all" > cgroup.subtree_control
mkdir -p person/shell
echo "$all" > person/cgroup.subtree_control
for file in . cgroup.procs cgroup.subtree_control shell shell/cgroup.procs; do chown 54321:54322 person/$file; done
echo $$ > person/shell/cgroup.procs
cd /
/tests/contract_user --test-threads 2 $tests 2>&1
echo "KENNEL user $?"
sync
poweroff -f
