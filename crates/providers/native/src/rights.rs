//! The rights with which sandboxes are created: those of the host's root, or of an ordinary user.

use crate::groups::Groups;
use crate::range::{IDS, SHARED};
use kennel_jail::{IdMap, Ids, Rights};
use kennel_provider::Record;
use kennel_types::{IdScheme, Machine, Mode, ModeKey, ProviderKind, RootSource, RunsAs};
use rustix::process::{Gid, Uid};
use std::path::Path;

/// The creator of sandboxes, and the ids that are possible inside.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    pub(crate) rights: Rights,
    pub(crate) ids: Ids,
    /// Where cgroups can be created, if anywhere.
    pub(crate) groups: Groups,
}

impl Maker {
    /// The calling user.
    pub(crate) fn myself() -> Self {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        if user.is_root() {
            return Self { rights: Rights::Root, ids: Ids::range(0, SHARED, IDS), groups: Groups::of_root() };
        }
        Self { rights: Rights::User, ids: Self::ids_of_user(user, group), groups: Groups::delegated() }
    }

    /// The ids of the calling user, who is not root.
    pub(crate) fn ids_of_caller() -> Ids {
        Self::ids_of_user(rustix::process::geteuid(), rustix::process::getegid())
    }

    fn ids_of_user(user: Uid, group: Gid) -> Ids {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let programs = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"].iter().all(|program| Path::new(program).exists());
        let given = |path: &str| {
            let name = name_of(&read("/etc/passwd"), user.as_raw());
            programs.then(|| range_of(&read(path), &name?, user.as_raw())).flatten()
        };
        let mut ids = Ids::range(0, 0, 1);
        ids.users[0].outside = user.as_raw();
        ids.groups[0].outside = group.as_raw();
        if let (Some(users), Some(groups)) = (given("/etc/subuid"), given("/etc/subgid")) {
            ids.users.push(users);
            ids.groups.push(groups);
        }
        ids
    }

    /// Returns the mode of sandboxes with an image, or on the host's root.
    pub(crate) fn mode(&self, image: bool) -> &'static Mode {
        let root = if image { RootSource::Image } else { RootSource::Host };
        let (runs_as, id_scheme, cgroups) = match self.rights {
            Rights::Root => (RunsAs::Root, IdScheme::Usual, true),
            Rights::User => {
                let id_scheme = if self.ids.users.len() > 1 { IdScheme::Usual } else { IdScheme::One };
                (RunsAs::User, id_scheme, self.groups.dir().is_some())
            }
        };
        let (provider, machine) = (ProviderKind::Native, Machine::Here);
        let key = ModeKey { provider, runs_as, machine, root, id_scheme, cgroups };
        Mode::with(key).expect("the mode table has a row for each of these keys")
    }

    /// A description for people.
    pub(crate) fn describe(&self) -> &'static str {
        match self.rights {
            Rights::Root => "as root",
            Rights::User if self.ids.users.len() > 1 => "as an ordinary user with a range of ids",
            Rights::User => "as an ordinary user with one id",
        }
    }

    /// The ids of one sandbox.
    pub(crate) fn ids_of(&self, record: &Record) -> Ids {
        self.ids_from(record.first_id)
    }

    /// The ids of a sandbox whose range starts with this one.
    pub(crate) fn ids_from(&self, first_id: Option<u32>) -> Ids {
        match (self.rights, first_id) {
            (Rights::Root, Some(first)) => Ids::range(0, first, IDS),
            _ => self.ids.clone(),
        }
    }

    /// Whether a user with this id can exist inside.
    pub(crate) fn has(&self, user: u32) -> bool {
        self.ids.users.iter().any(|map| (map.inside..map.inside + map.count).contains(&user))
    }
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Returns the first subordinate id range of a user, mapped to the ids from 1 inside.
fn range_of(file: &str, name: &str, uid: u32) -> Option<IdMap> {
    file.lines().find_map(|line| {
        let [who, first, count] = line.split(':').collect::<Vec<_>>()[..] else { return None };
        let (outside, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        let mine = who == name || who.parse() == Ok(uid);
        (mine && count > 0 && outside.checked_add(count).is_some()).then(|| IdMap {
            inside: 1,
            outside,
            count: count.min(IDS),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_name_and_by_number() {
        let file = "ann:100000:65536\n1001:200000:1000\nbroken\nbob:4294967295:10\nbob:300000:5\n";
        assert_eq!(range_of(file, "ann", 1000), Some(IdMap { inside: 1, outside: 100_000, count: 65_536 }));
        assert_eq!(range_of(file, "eve", 1001), Some(IdMap { inside: 1, outside: 200_000, count: 1000 }));
        assert_eq!(range_of(file, "bob", 1002), Some(IdMap { inside: 1, outside: 300_000, count: 5 }));
        assert_eq!(range_of(file, "eve", 1), None);
    }

    #[test]
    fn a_name_is_found_by_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(name_of(passwd, 1), None);
    }
}
