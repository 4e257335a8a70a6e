//! Jails that are started before their sandbox is known. They have created their namespaces and wait for the plan.
//!
//! `kennel run` starts one for its own sandbox. A pool holds several, and hands them over to the processes that create
//! sandboxes: the jail's socket, its process, and the lock of the host ids that it was started with. Everything else is
//! part of the plan, so a jail fits any sandbox that has the same kind of network.

use crate::early::EarlyJail;
use crate::range::Claim;
use crate::{NO_PANIC, Native, encoded, mask_layer, missing, plan};
use kennel_core::{Error, Prepared, Provider as _, Result};
use kennel_jail::{Base, Network, Rights};
use kennel_provider::{Children, Helper};
use kennel_types::{ErrorCode, NetworkMode, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::PathBuf;

/// A jail that was started early.
pub(crate) struct Ahead {
    network: Network,
    first_id: Option<u32>,
    /// The claim on its host ids, until a sandbox takes it.
    claim: Option<Claim>,
    /// What it already prepares: the view of the host's root that sandboxes of root have.
    base: Option<Base>,
    jail: Helper,
}

/// The jails that were started early and wait for their sandbox.
#[derive(Default)]
pub(crate) struct Waiting {
    /// For the next sandbox, whatever its id is.
    any: Option<Ahead>,
    /// For the sandboxes with these ids.
    of: HashMap<SandboxId, Ahead>,
    /// The jails that this process has started for others.
    children: Children,
}

/// What another process must know of a jail to use it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Description {
    /// The jail program. Its name contains a hash of its content, so it is the same only for the same version.
    program: PathBuf,
    /// The jail's first argument.
    network: String,
    /// The user that its namespaces are charged to.
    first_id: Option<u32>,
    /// Whether the third descriptor is the claim on its host ids.
    has_claim: bool,
    /// The id maps of an ordinary user, which the jail has already been given.
    id_maps: Vec<String>,
}

impl Native {
    /// Starts a jail early, before the sandbox is known: it creates its namespaces while the caller continues. The next
    /// sandbox that is started with this network uses it. If there is none, the jail ends with this provider. If the
    /// caller has one that fits, it is used. This needs no async runtime. Errors are reported when a sandbox is started.
    pub fn prepare(&self, network: Option<NetworkMode>, early: Option<EarlyJail>) {
        if missing().is_none() {
            self.waiting().any = self.start_with_base(network, early).ok();
        }
    }

    /// Starts a jail. The jail of root already prepares the view of the host's root.
    fn start_with_base(&self, network: Option<NetworkMode>, early: Option<EarlyJail>) -> Result<Ahead> {
        let mut ahead = self.start_ahead(network, true, early)?;
        if self.maker.rights == Rights::Root {
            let ids = self.maker.ids_from(ahead.claim.as_ref().map(Claim::first));
            let told = kennel_jail::Ahead { ids, base: mask_layer::host(&self.ours()) };
            ahead.jail.send_ahead(&encoded(&told)?)?;
            ahead.base = Some(told.base);
        }
        Ok(ahead)
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().expect(NO_PANIC)
    }

    fn start_ahead(&self, network: Option<NetworkMode>, ahead: bool, early: Option<EarlyJail>) -> Result<Ahead> {
        let network = plan::network(network.unwrap_or(self.mode().default_network()));
        if let Some(EarlyJail { pid, line, claim }) = early.filter(|_| network == EarlyJail::NETWORK) {
            let first_id = self.charged_to(claim.as_ref().map(Claim::first));
            let jail = Helper::adopt(&self.program()?, pid, line)?;
            return Ok(Ahead { network, first_id, claim, base: None, jail });
        }
        let claim = self.claim()?;
        let first_id = self.charged_to(claim.as_ref().map(Claim::first));
        Ok(Ahead { network, first_id, claim, base: None, jail: self.jail(network, first_id, ahead)? })
    }

    /// Claims host ids for a new sandbox, or takes those of the jail that was started for it.
    pub(crate) fn claim_ahead(&self, id: &SandboxId) -> Result<Option<Claim>> {
        let mut waiting = self.waiting();
        let waiting = &mut *waiting;
        let claim = match waiting.of.get_mut(id) {
            Some(ahead) => ahead.claim.take(),
            None => waiting.any.as_mut().and_then(|ahead| ahead.claim.take()),
        };
        claim.map_or_else(|| self.claim(), |claim| Ok(Some(claim)))
    }

    /// Returns the jail that was started for a sandbox and what it prepares, if it fits and still waits.
    pub(crate) fn take_ahead(
        &self,
        id: &SandboxId,
        network: Network,
        first_id: Option<u32>,
    ) -> Option<(Helper, Option<Base>)> {
        let mut waiting = self.waiting();
        let ahead = waiting.of.remove(id).or_else(|| waiting.any.take())?;
        let fits = ahead.network == network && ahead.first_id == first_id && ahead.jail.is_waiting();
        fits.then_some((ahead.jail, ahead.base))
    }

    /// Ends the jail that was started for a sandbox, if there is one: the sandbox was not created, or is removed.
    pub(crate) fn drop_ahead(&self, id: &SandboxId) {
        self.waiting().of.remove(id);
    }

    /// Starts a jail that another process can use.
    pub(crate) fn part(&self, spec: &SandboxSpec) -> Result<Prepared> {
        if let Some((what, next_step)) = missing() {
            return Err(Error::new(ErrorCode::NotAvailable, what).suggest(next_step));
        }
        let program = self.program()?;
        let Ahead { network, first_id, claim, jail, .. } = self.start_ahead(spec.network, false, None)?;
        let description = Description {
            program,
            network: network.argument().to_owned(),
            first_id,
            has_claim: claim.is_some(),
            id_maps: self.id_maps(),
        };
        let children = self.waiting().children.clone();
        let mut descriptors = Vec::from(jail.into_descriptors(&children)?);
        if let Some(claim) = claim {
            descriptors.push(claim.into_lock()?);
        }
        let description = serde_json::to_string(&description)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("describe a jail: {error}")))?;
        Ok(Prepared { description, descriptors })
    }

    /// Uses a jail that another process has started.
    pub(crate) fn adopt(&self, id: &SandboxId, spec: &SandboxSpec, part: Prepared) -> Result<(), String> {
        let ahead = self.read_part(part)?;
        let wanted = plan::network(spec.network.unwrap_or(self.mode().default_network()));
        if ahead.network != wanted {
            return Err(format!("the sandbox needs {} network", describe(wanted)));
        }
        self.waiting().of.insert(id.clone(), ahead);
        Ok(())
    }

    fn read_part(&self, part: Prepared) -> Result<Ahead, String> {
        let description: Description =
            serde_json::from_str(&part.description).map_err(|error| format!("its description is invalid: {error}"))?;
        let program = self.program().map_err(|error| error.to_string())?;
        if description.program != program || description.id_maps != self.id_maps() {
            return Err("it was made by another version of Kennel".to_owned());
        }
        let network = Network::ALL.into_iter().find(|known| known.argument() == description.network);
        let network = network.ok_or("it has an unknown kind of network")?;
        let mut descriptors = part.descriptors.into_iter();
        let (Some(line), Some(process)) = (descriptors.next(), descriptors.next()) else {
            return Err("it has no descriptors".to_owned());
        };
        let claim = match (description.has_claim, description.first_id, descriptors.next()) {
            (false, _, None) => None,
            (true, Some(first), Some(lock)) => {
                Some(self.claims.take_over(first, lock).map_err(|error| error.to_string())?)
            }
            _ => return Err("its claim on host ids is missing".to_owned()),
        };
        let jail = Helper::from_descriptors(program, [line, process]);
        Ok(Ahead { network, first_id: description.first_id, claim, base: None, jail })
    }

    /// The id maps that the jails of an ordinary user are started with.
    fn id_maps(&self) -> Vec<String> {
        match self.maker.rights {
            Rights::Root => Vec::new(),
            Rights::User => self.maker.ids.arguments().to_vec(),
        }
    }
}

fn describe(network: Network) -> &'static str {
    match network {
        Network::Own => "a separate",
        Network::Host => "the host's",
    }
}
