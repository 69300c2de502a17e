//! A fake machine: a directory with the files of `/proc` and `/sys` that are read.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The usual machine: 24 GiB, the kernel's defaults, 20,000 descriptors, no control groups.
const FILES: &[(&str, &str)] = &[
    ("proc/sys/fs/epoll/max_user_watches", "5491511\n"),
    ("proc/sys/fs/file-max", "2466177\n"),
    ("proc/sys/fs/file-nr", "544\t0\t2466177\n"),
    ("proc/sys/fs/nr_open", "1048576\n"),
    ("proc/sys/kernel/pid_max", "32768\n"),
    ("proc/sys/kernel/threads-max", "192730\n"),
    ("proc/sys/net/core/netdev_max_backlog", "1000\n"),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/sys/net/ipv4/tcp_ehash_entries", "262144\n"),
    ("proc/sys/net/ipv4/tcp_max_orphans", "131072\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "2048\n"),
    ("proc/sys/net/ipv4/tcp_max_tw_buckets", "131072\n"),
    ("proc/sys/net/ipv4/tcp_mem", "287901\t383868\t575802\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432\n"),
    ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
    ("proc/sys/vm/max_map_count", "65530\n"),
    ("proc/loadavg", "1.19 1.57 1.37 3/103 29024\n"),
    ("proc/meminfo", "MemTotal:  25165824 kB\nMemFree:   100 kB\nMemAvailable:  24117248 kB\n"),
    (
        "proc/net/softnet_stat",
        "0474e57b 00000000 00000005 00000000\n048baa78 000008b1 0000000d 00000000\n",
    ),
    (
        "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max processes             96365                96365                processes \n\
         Max open files            1024                 20000                files     \n",
    ),
    ("proc/self/status", "Name:\tsimurgh\nUid:\t0\t0\t0\t0\n"),
];

/// The directory, removed with this.
pub(crate) struct FakeMachine(TempDir);

impl FakeMachine {
    pub(crate) fn usual() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        for (name, text) in FILES {
            fake.set(name, text);
        }
        fake
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn set(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    /// Makes a setting refuse all writes, even by root. It reads 65536.
    pub(crate) fn refuse(&self, name: &str) {
        self.remove(name);
        // Its mode is 0444, which the kernel enforces for root as well.
        std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", self.path(name)).unwrap();
    }

    /// A file without the white space around it.
    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap().trim().to_owned()
    }

    pub(crate) fn snapshot(&self) -> Vec<(&'static str, String)> {
        FILES.iter().map(|(name, _)| (*name, self.text(name))).collect()
    }
}
