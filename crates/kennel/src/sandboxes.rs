//! Finds sandboxes and providers through the engine, and reports what the user should know about it.

use crate::next_step::words;
use crate::report;
use kennel_core::{Provider, Result, Sandbox};
use kennel_engine::{Choice, Engine, Settings, Silent};
use kennel_types::ProviderKind;
use std::sync::Arc;

/// Finds a sandbox by its id, its name or the beginning of its id. If it is not found, warns about providers that could
/// not be asked.
pub(crate) async fn find(engine: &Engine, text: &str) -> Result<Sandbox> {
    let found = engine.look_up(text).await;
    report_silent(&found.silent);
    found.sandbox
}

/// Warns about providers that did not respond.
pub(crate) fn report_silent(silent: &[Silent]) {
    for Silent { provider, error } in silent {
        report::warning(&format!("cannot list the sandboxes of {}: {error}", provider.name()));
    }
}

/// Returns the providers that respond, and warns about the others.
pub(crate) async fn responding(engine: &Engine) -> Result<Vec<Arc<dyn Provider>>> {
    let (providers, silent) = engine.responding().await?;
    report_silent(&silent);
    Ok(providers)
}

/// Returns the settings in effect, and prints their warnings.
pub(crate) fn settings(engine: &Engine) -> Result<Settings> {
    let settings = engine.settings()?;
    warn(&settings);
    Ok(settings)
}

/// Prints the warnings about settings.
pub(crate) fn warn(settings: &Settings) {
    for problem in &settings.warnings {
        report::warning(&problem.to_string());
    }
    let unused: Vec<String> = settings.without_effect.iter().map(|(key, at)| format!("{key} ({at})")).collect();
    if !unused.is_empty() {
        report::warning(&format!("these settings have no effect yet: {}", unused.join(", ")));
    }
}

/// Returns the provider for a new sandbox. Says why it is not the first one, and warns if there is no sandbox.
pub(crate) async fn choose(engine: &Engine, settings: &mut Settings, image: Option<&str>) -> Result<Arc<dyn Provider>> {
    let Choice { provider, passed_over, directly, .. } = engine.choose(settings, image).await?;
    if let Some(directly) = directly {
        let ignored = directly.ignored.join(", ");
        let ignored = if ignored.is_empty() { ignored } else { format!("; ignored settings: {ignored}") };
        report::warning(&format!("{}: the command runs without a sandbox{ignored}", directly.reason));
    }
    let native = passed_over.iter().find(|over| over.provider == ProviderKind::Native);
    if let Some(native) = native.filter(|_| image.is_none()) {
        let fix = native.next_step.as_ref().map(|step| format!(" ({})", words(step))).unwrap_or_default();
        report::note(&format!("native is not available: {}{fix}; using {}", native.reason, provider.name()));
    }
    Ok(provider)
}
