#!/bin/sh
# The first program of the guest: finds its disk, and goes on there.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk overlay loop; do
    insmod "/modules/$module.ko" || echo "no module $module"
done
while [ ! -e /dev/vda ]; do sleep 0.1; done
mount -t ext4 /dev/vda /disk || echo "no disk"
for dir in dev proc sys; do mount --move /$dir /disk/$dir; done
exec switch_root /disk /init
