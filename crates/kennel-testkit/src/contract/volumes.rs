//! Volumes: the data volume of a sandbox outlives it, unless its removal is requested.

use crate::Stage;
use crate::inside::{code, ok};
use kennel_core::RemoveOptions;
use kennel_types::{ErrorCode, SandboxSpec, Support};

fn named(stage: &Stage, word: &str) -> SandboxSpec {
    SandboxSpec { name: Some(stage.name(word)), data: true, ..stage.spec() }
}

/// A later sandbox of the same name gets the same data volume, and no other sandbox does.
pub async fn data_volume_is_found_by_the_sandbox_name(stage: &Stage) {
    let spec = named(stage, "own");
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let first = stage.started(&spec).await;
    ok(&first, "echo kept > /.data/file && chmod 700 /.data").await;
    first.remove(RemoveOptions { force: true, volumes: false }).await.unwrap();
    let other = stage.started(&named(stage, "other")).await;
    ok(&other, "test ! -e /.data/file && echo x > /.data/mine").await;
    let second = stage.started(&spec).await;
    assert_eq!(ok(&second, "cat /.data/file && ls /.data").await, "kept\nfile");
    second.remove(RemoveOptions { force: true, volumes: true }).await.unwrap();
    let third = stage.started(&spec).await;
    ok(&third, "test ! -e /.data/file").await;
    for sandbox in [third, other] {
        sandbox.remove(RemoveOptions { force: true, volumes: true }).await.unwrap();
    }
}

/// A data volume without a sandbox name is refused, because no later sandbox could find it.
pub async fn data_volume_without_a_sandbox_name_is_refused(stage: &Stage) {
    let spec = SandboxSpec { name: None, data: true, tied: true, ..stage.spec() };
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    assert_eq!(code(stage.try_create(&spec).await), ErrorCode::InvalidConfig);
}
