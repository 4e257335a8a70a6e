//! Changes the limits of a container.

use crate::Docker;
use crate::create::missing_limits;
use crate::engine::status;
use bollard::models::ContainerUpdateBody;
use kennel_core::{Error, Provider as _, Result};
use kennel_types::{ErrorCode, Limits, NextStep, SandboxId, Support};

impl Docker {
    pub(crate) async fn change_limits_of(&self, id: &SandboxId, asked: Limits) -> Result<()> {
        let container = self.existing(id).await?;
        let refused = |what: &str| {
            let step = NextStep::advice("create a new sandbox with these limits");
            Err(Error::unsupported(self.name(), what).suggest(step))
        };
        if asked.disk.is_some() {
            return refused("changing the disk limit of a sandbox");
        }
        if asked.on_processes() && self.mode().limits != Support::Given {
            return refused("limits");
        }
        if container.tied {
            return Err(Error::is_tied(&container.info.name));
        }
        let memory = asked.memory.map(|size| size.0.cast_signed());
        let update = ContainerUpdateBody {
            memory,
            // The same as memory: no swap in addition to it.
            memory_swap: memory,
            nano_cpus: asked.millicpus.map(|millis| i64::from(millis) * 1_000_000),
            pids_limit: asked.pids.map(i64::from),
            ..ContainerUpdateBody::default()
        };
        match self.engine.api().await?.update_container(&container.engine_id, update).await {
            Err(error) if matches!(status(&error), Some(404 | 405)) && self.existing(id).await.is_ok() => {
                // Old versions of Podman have no such call.
                return refused("changing the limits of a sandbox with this version of the engine");
            }
            done => {
                let what = format!("change the limits of sandbox {}", container.info.name);
                done.map_err(|error| self.engine.error(what, error))?;
            }
        }
        let given = self.existing(id).await?.info.enforcement.limits;
        let missing = missing_limits(&asked, &given);
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!("{} did not change {} of sandbox {id}", self.name(), missing.join(" and "));
        Err(Error::new(ErrorCode::Unsupported, message))
    }
}
