//! Registry logins in the form that engines accept: each only for its own registry, and only if something is pulled
//! from it.

use crate::Docker;
use crate::engine::EngineKind;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use kennel_core::{Error, Result};
use kennel_image::{Login, Reference};
use kennel_types::ErrorCode;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// The name of Docker's own registry in login files.
const HUB: &str = "https://index.docker.io/v1/";

/// A login, and what it is for.
pub(crate) struct RegistryLogin {
    /// The registry, as Docker names it; with Podman, the repository.
    pub(crate) place: String,
    pub(crate) said: Value,
}

/// Encodes a login for a header. The client library uses an alphabet that engines do not accept.
pub(crate) fn packed(said: &Value) -> String {
    URL_SAFE.encode(said.to_string())
}

impl Docker {
    /// Returns the login for an image's registry, if there is one. With Podman, the image name must include the
    /// registry: for short names, Podman has its own list of registries.
    pub(crate) async fn login(&self, image: &str) -> Result<Option<RegistryLogin>> {
        // The engine refuses an invalid image name.
        let Ok(reference) = image.parse::<Reference>() else { return Ok(None) };
        let registry = reference.registry();
        let named = image.strip_prefix(registry).is_some_and(|rest| rest.starts_with('/'));
        if !named && self.engine.kind() == EngineKind::Podman {
            return Ok(None);
        }
        let login =
            self.logins.login(&reference).await.map_err(|error| error.context(format!("pull the image {image}")))?;
        let said = login.map(|login| match login {
            Login::Basic { user, secret } => {
                json!({ "username": user, "password": secret.expose_secret(), "serveraddress": registry })
            }
            Login::Identity(token) => json!({ "identitytoken": token.expose_secret(), "serveraddress": registry }),
            Login::Bearer(token) => json!({ "registrytoken": token.expose_secret(), "serveraddress": registry }),
        });
        let place = match self.engine.kind() {
            EngineKind::Podman => format!("{registry}/{}", reference.repository()),
            EngineKind::Docker if registry == "docker.io" => HUB.to_owned(),
            EngineKind::Docker => registry.to_owned(),
        };
        Ok(said.map(|said| RegistryLogin { place, said }))
    }

    /// Returns the logins for the registries of these images. If one is not available, this is reported, because it may
    /// not be needed.
    pub(crate) async fn logins(
        &self,
        images: impl IntoIterator<Item = String>,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<Option<Value>> {
        let mut all = serde_json::Map::new();
        for image in images {
            let login = match self.login(&image).await {
                Ok(login) => login,
                Err(error) => {
                    tell(error.to_string());
                    continue;
                }
            };
            let Some(RegistryLogin { place, said }) = login else { continue };
            if all.get(&place).is_some_and(|other| *other != said) {
                let message =
                    format!("there is more than one login for {place}, and a build on Docker accepts only one");
                return Err(
                    Error::new(ErrorCode::InvalidConfig, message).advise("docker pull what needs another, first")
                );
            }
            all.insert(place, said);
        }
        Ok((!all.is_empty()).then_some(Value::Object(all)))
    }
}
