//! Chooses the provider for a new sandbox, and says why each other provider was passed over.

use crate::{Engine, Settings};
use kennel_config::OnUnavailable;
use kennel_core::{Error, Provider, Result};
use kennel_types::{ErrorCode, NextStep, ProviderKind};
use serde::Serialize;
use std::sync::Arc;

/// The provider for a new sandbox.
pub struct Choice {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// What the provider was chosen as. An engine may turn out to be another one: Podman can listen at Docker's socket.
    pub kind: ProviderKind,
    /// The providers that come first in the order of detection, and why they are not used.
    pub passed_over: Vec<PassedOver>,
    /// Why there is no sandbox, if the settings allow commands to run without one.
    pub directly: Option<Directly>,
}

/// A provider that is not used.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// The provider.
    pub provider: ProviderKind,
    /// Why it is not used.
    pub reason: String,
    /// What makes it usable.
    pub next_step: Option<NextStep>,
}

/// Commands run without a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directly {
    /// Why.
    pub reason: String,
    /// The settings that have no meaning without a sandbox, and are ignored.
    pub ignored: Vec<String>,
}

impl Choice {
    fn sure(kind: ProviderKind, provider: Arc<dyn Provider>) -> Self {
        Self { provider, kind, passed_over: Vec::new(), directly: None }
    }
}

impl Engine {
    /// Returns the provider for a new sandbox: the one that the caller or the settings name, else native if it works,
    /// else Podman, else Docker. `local` is never chosen automatically.
    ///
    /// If the settings allow commands to run without a sandbox, and there is none, the settings that describe a sandbox
    /// are removed.
    pub async fn choose(&self, settings: &mut Settings, image: Option<&str>) -> Result<Choice> {
        if let Some(named) = self.named() {
            return self.sure(named, settings);
        }
        if !settings.sandbox.enabled {
            return self.directly("sandbox.enabled is false".to_owned(), settings);
        }
        let found = match provider_in_settings(settings.sandbox.provider, "sandbox.provider")? {
            Some(named) => self.sure(named, settings),
            None => self.detect(settings, image).await,
        };
        if settings.sandbox.on_unavailable == OnUnavailable::Error {
            return found;
        }
        let reason = match found {
            Ok(choice) => {
                let probed = choice.provider.probe().await;
                if probed.available {
                    return Ok(choice);
                }
                probed.detail
            }
            Err(error) if error.code() == ErrorCode::NotAvailable => error.to_string(),
            Err(error) => return Err(error),
        };
        self.directly(format!("{reason}, and sandbox.onUnavailable is run-directly"), settings)
    }

    /// Returns the provider for plain processes of the host.
    fn directly(&self, reason: String, settings: &mut Settings) -> Result<Choice> {
        let ignored = settings.without_sandbox();
        let local = self.sure(ProviderKind::Local, settings)?;
        Ok(Choice { directly: Some(Directly { reason, ignored }), ..local })
    }

    /// Returns a provider that is used whether it works or not.
    fn sure(&self, kind: ProviderKind, settings: &Settings) -> Result<Choice> {
        Ok(Choice::sure(kind, self.provider_with(kind, settings)?))
    }

    /// Returns the first provider that works.
    pub(crate) async fn detect(&self, settings: &Settings, image: Option<&str>) -> Result<Choice> {
        if let Some(given) = self.first_given() {
            return self.sure(given, settings);
        }
        let native = self.provider_with(ProviderKind::Native, settings)?;
        // An image that is not in Kennel's store may be in that of an engine.
        let engine = || {
            [ProviderKind::Podman, ProviderKind::Docker]
                .into_iter()
                .any(|kind| self.endpoint(kind).is_ok_and(|endpoint| endpoint.may_answer()))
        };
        let elsewhere = |image: &str| !self.has_image(image) && engine();
        let why = if image.is_some_and(elsewhere) {
            ("it does not have the image".to_owned(), None)
        } else {
            let availability = native.probe().await;
            if availability.available {
                return Ok(Choice::sure(ProviderKind::Native, native));
            }
            (availability.detail, availability.next_step)
        };
        self.choose_engine(settings, why).await
    }

    /// Returns the provider that builds images: the named one, else an engine.
    pub async fn choose_for_builds(&self, settings: &Settings) -> Result<Choice> {
        let set = provider_in_settings(settings.sandbox.provider, "sandbox.provider")?;
        let engine = set.filter(|kind| matches!(kind, ProviderKind::Podman | ProviderKind::Docker));
        match self.named().or(engine) {
            Some(named) => self.sure(named, settings),
            None => self.choose_engine(settings, ("it cannot build images".to_owned(), None)).await,
        }
    }

    /// Returns Podman if it works, else Docker. `native` says why the native provider is not used.
    async fn choose_engine(&self, settings: &Settings, native: (String, Option<NextStep>)) -> Result<Choice> {
        let (reason, next_step) = native;
        let mut passed_over = vec![PassedOver { provider: ProviderKind::Native, reason, next_step }];
        let (podman, docker) = (self.endpoint(ProviderKind::Podman)?, self.endpoint(ProviderKind::Docker)?);
        let missing = |provider, endpoint: &crate::endpoint::Endpoint| PassedOver {
            provider,
            reason: format!("{} does not exist", endpoint.shown()),
            next_step: Some(NextStep::SetUpProvider { provider }),
        };
        let chosen = match (podman.may_answer(), docker.may_answer()) {
            // A socket may exist although its engine does not run.
            (true, true) if !podman.is_same(&docker) => {
                let probed = self.provider_with(ProviderKind::Podman, settings)?.probe().await;
                if probed.available {
                    ProviderKind::Podman
                } else {
                    let (reason, next_step) = (probed.detail, probed.next_step);
                    passed_over.push(PassedOver { provider: ProviderKind::Podman, reason, next_step });
                    ProviderKind::Docker
                }
            }
            (true, _) => ProviderKind::Podman,
            (false, true) => {
                passed_over.push(missing(ProviderKind::Podman, &podman));
                ProviderKind::Docker
            }
            (false, false) => {
                passed_over.push(missing(ProviderKind::Podman, &podman));
                passed_over.push(missing(ProviderKind::Docker, &docker));
                return Err(none_available(&passed_over));
            }
        };
        Ok(Choice { passed_over, ..self.sure(chosen, settings)? })
    }

    /// Returns the provider that a new sandbox would use; native if none is available.
    pub async fn provider_for_new(&self, settings: &Settings) -> Result<ProviderKind> {
        match self.choose(&mut settings.clone(), None).await {
            Err(error) if error.code() == ErrorCode::NotAvailable => Ok(ProviderKind::Native),
            found => Ok(found?.provider.mode().key.provider),
        }
    }
}

/// Returns the error if no provider is available. It lists why.
fn none_available(passed_over: &[PassedOver]) -> Error {
    let reasons: Vec<String> =
        passed_over.iter().map(|over| format!("{}: {}", over.provider.name(), over.reason)).collect();
    let native = passed_over.iter().find(|over| over.provider == ProviderKind::Native);
    let native = native.and_then(|over| over.next_step.clone());
    let engine = NextStep::SetUpProvider { provider: ProviderKind::Docker };
    let steps: Vec<NextStep> = native.into_iter().chain([engine]).collect();
    Error::new(ErrorCode::NotAvailable, format!("no provider is available: {}", reasons.join("; ")))
        .suggest(NextStep::either(steps))
}

/// Converts a setting that names a provider. Returns `None` for `auto`.
pub(crate) fn provider_in_settings(provider: kennel_config::Provider, key: &str) -> Result<Option<ProviderKind>> {
    use kennel_config::Provider;
    match provider {
        Provider::Auto => Ok(None),
        Provider::Native => Ok(Some(ProviderKind::Native)),
        Provider::Podman => Ok(Some(ProviderKind::Podman)),
        Provider::Docker => Ok(Some(ProviderKind::Docker)),
        Provider::Local => Ok(Some(ProviderKind::Local)),
        Provider::Mock => Ok(Some(ProviderKind::Mock)),
        Provider::Apple | Provider::Vm | Provider::Kubernetes => {
            let name = format!("{provider:?}").to_lowercase();
            let steps =
                [NextStep::ShowSettings { key: Some(key.to_owned()) }, NextStep::use_provider([ProviderKind::Native])];
            Err(Error::new(ErrorCode::Unsupported, format!("{key}: there is no {name} provider yet"))
                .suggest(NextStep::either(steps)))
        }
    }
}
