//! Tokens and idempotency keys, through the store on disk.

use kennel_engine::{Begun, IdempotencyKeys, NewToken, Store, TokenLimits, Tokens};
use kennel_types::{ErrorCode, Scope};

fn new(name: &str) -> NewToken {
    NewToken {
        name: name.into(),
        scope: Scope::Exec,
        project: Some("shop".into()),
        directories: vec!["/srv/shop".into()],
        limits: TokenLimits { sandboxes: Some(3), ..TokenLimits::default() },
    }
}

async fn store(dir: &tempfile::TempDir) -> Store {
    Store::open(dir.path().join("kennel.db")).await.unwrap()
}

#[tokio::test]
async fn a_token_is_recognized_until_it_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::new(store(&dir).await);
    let (secret, made) = tokens.create(new("ci")).await.unwrap();
    assert_eq!(secret.len(), "kennel_".len() + 64);
    let found = tokens.verify(&secret).await.unwrap().expect("it was just created");
    assert_eq!(
        (found.id.as_str(), found.scope, found.project.as_deref()),
        (made.id.as_str(), Scope::Exec, Some("shop"))
    );
    assert_eq!((found.directories, found.limits.sandboxes), (vec!["/srv/shop".to_owned()], Some(3)));
    for wrong in ["", "kennel_", "Bearer", &secret[..secret.len() - 1], &secret.to_uppercase()] {
        assert!(tokens.verify(wrong).await.unwrap().is_none(), "{wrong}");
    }
    assert_eq!(tokens.create(new("ci")).await.unwrap_err().code(), ErrorCode::AlreadyExists);
    assert_eq!(tokens.list().await.unwrap().len(), 1);
    assert_eq!(tokens.revoke("ci").await.unwrap().id, made.id);
    assert!(tokens.verify(&secret).await.unwrap().is_none());
    assert_eq!(tokens.revoke("ci").await.unwrap_err().code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn the_secret_is_not_in_any_file() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, _) = Tokens::new(store(&dir).await).create(new("ci")).await.unwrap();
    let hex = secret.strip_prefix("kennel_").unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(hex.len()).any(|part| part == hex.as_bytes()));
        files += 1;
    }
    assert!(files > 0);
}

#[tokio::test]
async fn invalid_tokens_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::new(store(&dir).await);
    for bad in [
        NewToken { name: String::new(), ..new("") },
        NewToken { name: "a\nb".into(), ..new("") },
        NewToken { name: "x".repeat(129), ..new("") },
        NewToken { directories: vec!["relative".into()], ..new("x") },
    ] {
        let error = tokens.create(bad.clone()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{bad:?}");
    }
}

#[tokio::test]
async fn a_repeated_request_gets_the_first_response() {
    let dir = tempfile::tempdir().unwrap();
    let keys = IdempotencyKeys::new(store(&dir).await);
    assert_eq!(keys.begin("t", "k", "hash", "box1").await.unwrap(), Begun::New);
    // As after a kill: the id that was recorded first counts.
    let again = IdempotencyKeys::new(store(&dir).await);
    assert_eq!(again.begin("t", "k", "hash", "box2").await.unwrap(), Begun::Unfinished("box1".into()));
    assert_eq!(again.begin("t", "k", "other", "box2").await.unwrap(), Begun::Different);
    assert_eq!(again.begin("u", "k", "other", "box3").await.unwrap(), Begun::New, "keys belong to tokens");
    again.finish("t", "k", 201, "{}").await.unwrap();
    assert_eq!(keys.begin("t", "k", "hash", "box4").await.unwrap(), Begun::Finished(201, "{}".into()));
    keys.forget("t", "k").await.unwrap();
    assert_eq!(keys.begin("t", "k", "other", "box5").await.unwrap(), Begun::New);
}
