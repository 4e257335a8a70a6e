//! Users and groups of the sandbox, from its `/etc/passwd` and `/etc/group`.
//!
//! The files are parsed here and never through libc: name lookups of a static libc load libraries found in the sandbox.

use crate::paths;
use rustix::fs::OFlags;
use std::io::Read;

/// Bytes in the largest file that is read.
const CAP: u64 = 1024 * 1024;

/// A buffer size that is enough for most files.
const USUAL: usize = 16 * 1024;

/// The user of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) name: Option<String>,
    pub(crate) home: Option<String>,
    pub(crate) shell: Option<String>,
}

struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

/// Finds the user for `name`, `uid`, `name:group` or `uid:gid`.
pub(crate) fn find(text: &str) -> Result<User, String> {
    resolve(text, &read("/etc/passwd"), &read("/etc/group"))
}

/// Whether the uid has a passwd entry.
pub(crate) fn is_known(uid: u32) -> bool {
    accounts(&read("/etc/passwd")).any(|account| account.uid == uid)
}

/// Whether the user name is in use.
pub(crate) fn is_taken(name: &str) -> bool {
    accounts(&read("/etc/passwd")).any(|account| account.name == name)
}

fn resolve(text: &str, passwd: &str, group: &str) -> Result<User, String> {
    let (user, chosen_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let account = match user.parse::<u32>() {
        Ok(uid) => accounts(passwd).find(|account| account.uid == uid),
        Err(_) => Some(
            accounts(passwd)
                .find(|account| account.name == user)
                .ok_or_else(|| format!("there is no user {user:?}"))?,
        ),
    };
    let uid = match (&account, user.parse()) {
        (_, Ok(uid)) => uid,
        (Some(account), Err(_)) => account.uid,
        (None, Err(_)) => return Err(format!("there is no user {user:?}")),
    };
    let gid = match chosen_group {
        None => account.as_ref().map_or(0, |account| account.gid),
        Some(name) => match name.parse() {
            Ok(gid) => gid,
            Err(_) => groups(group).find(|(found, ..)| *found == name).ok_or(format!("there is no group {name:?}"))?.1,
        },
    };
    let mut all = vec![gid];
    if let (Some(account), None) = (&account, chosen_group) {
        let extra = groups(group)
            .filter(|(_, _, members)| members.split(',').any(|member| member == account.name))
            .map(|(_, gid, _)| gid);
        all.extend(extra);
        all.dedup();
        all.truncate(64);
    }
    let account = account.map(|account| (account.name, account.home, account.shell));
    let (name, home, shell) = match account {
        Some((name, home, shell)) => (Some(name), Some(home), Some(shell)),
        None => (None, None, None),
    };
    Ok(User { uid, gid, groups: all, name, home, shell })
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let (_password, uid, gid) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (_comment, home, shell) =
            (fields.next()?, fields.next()?.to_owned(), fields.next().unwrap_or("").to_owned());
        Some(Account { name, uid, gid, home, shell })
    })
}

fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        Some((name, fields.next()?.parse().ok()?, fields.next().unwrap_or("")))
    })
}

/// Reads a file of the sandbox. The result is empty if it does not exist or is not a regular file.
fn read(path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = paths::open_file(path.as_bytes(), OFlags::RDONLY) {
        text.reserve(USUAL);
        let _ = std::fs::File::from(file).take(CAP).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::resolve;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nann:x:1000:100:,,,:/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:ann,bob\nusers:x:100:\n";

    #[test]
    fn users_are_found_by_name_and_id() {
        let ann = resolve("ann", PASSWD, GROUP).unwrap();
        assert_eq!((ann.uid, ann.gid, &*ann.groups), (1000, 100, &[100, 50][..]));
        assert_eq!(ann.home.as_deref(), Some("/home/ann"));
        assert_eq!(resolve("1000", PASSWD, GROUP).unwrap(), ann);
        let other = resolve("ann:staff", PASSWD, GROUP).unwrap();
        assert_eq!((other.gid, &*other.groups), (50, &[50][..]));
        let nobody = resolve("4242:4243", PASSWD, GROUP).unwrap();
        assert_eq!((nobody.uid, nobody.gid, nobody.home), (4242, 4243, None));
        for unknown in ["eve", "ann:eve", "", "-1"] {
            assert!(resolve(unknown, PASSWD, GROUP).is_err(), "{unknown:?}");
        }
    }
}
