//! Sessions and profiles.

use crate::Client;
use crate::client::{escape, query};
use hyper::Method;
use kennel_api::{
    ChangeProfile, CreateProfile, CreateSession, ExecRequest, ExecResult, List, Millis, Page, ProfileView,
    RestartProfile, SessionEventView, SessionSecret, SessionView, StopRequest,
};
use kennel_types::Result;
use std::time::Duration;

const NONE: Option<&()> = None;

fn of_session(session: &str, rest: &str) -> String {
    format!("/v1/sessions/{}{rest}", escape(session))
}

fn of_profile(profile: &str, rest: &str) -> String {
    format!("/v1/profiles/{}{rest}", escape(profile))
}

impl Client {
    /// Opens a session.
    pub async fn create_session(&self, request: &CreateSession) -> Result<SessionView> {
        self.call(Method::POST, "/v1/sessions", Some(request)).await
    }

    /// Returns the sessions, newest first.
    pub async fn sessions(&self) -> Result<Vec<SessionView>> {
        let mut page: Page<SessionView> = self.get("/v1/sessions?limit=1000").await?;
        let mut all = std::mem::take(&mut page.items);
        while let Some(cursor) = page.next_cursor.take() {
            page = self.get(&format!("/v1/sessions?limit=1000&cursor={}", escape(&cursor))).await?;
            all.append(&mut page.items);
        }
        Ok(all)
    }

    /// Returns a session by its id or name.
    pub async fn session(&self, session: &str) -> Result<SessionView> {
        self.get(&of_session(session, "")).await
    }

    /// Starts the sandbox of a session.
    pub async fn start_session(&self, session: &str) -> Result<SessionView> {
        self.call(Method::POST, &of_session(session, "/start"), NONE).await
    }

    /// Ends all processes of a session.
    pub async fn stop_session(&self, session: &str, grace: Duration) -> Result<SessionView> {
        let grace = Some(Millis(grace.as_millis().try_into().unwrap_or(u64::MAX)));
        self.call(Method::POST, &of_session(session, "/stop"), Some(&StopRequest { grace })).await
    }

    /// Removes a session and its sandbox. Without `force`, it must not run.
    pub async fn remove_session(&self, session: &str, force: bool, volumes: bool) -> Result<()> {
        let parameters = [("force", Some(force.to_string())), ("volumes", Some(volumes.to_string()))];
        self.done(Method::DELETE, &of_session(session, &query(&parameters)), NONE).await
    }

    /// Runs a command in the sandbox of a session to its end.
    pub async fn exec_in_session(&self, session: &str, request: &ExecRequest) -> Result<ExecResult> {
        self.call(Method::POST, &of_session(session, "/exec"), Some(request)).await
    }

    /// Returns what happened to a session after the event with this number, oldest first; 0 for everything.
    pub async fn session_events(&self, session: &str, after: u64) -> Result<Vec<SessionEventView>> {
        let (mut all, mut cursor) = (Vec::new(), Some(after.to_string()));
        while let Some(after) = cursor {
            let parameters = query(&[("limit", Some("1000".into())), ("cursor", Some(after))]);
            let page: Page<SessionEventView> = self.get(&of_session(session, &format!("/events{parameters}"))).await?;
            all.extend(page.items);
            cursor = page.next_cursor;
        }
        Ok(all)
    }

    /// Returns the secret of a session, if it has one.
    pub async fn session_secret(&self, session: &str) -> Result<Option<String>> {
        let found: SessionSecret = self.get(&of_session(session, "/secret")).await?;
        Ok(found.secret)
    }

    /// Returns the profiles.
    pub async fn profiles(&self) -> Result<Vec<ProfileView>> {
        let list: List<ProfileView> = self.get("/v1/profiles").await?;
        Ok(list.items)
    }

    /// Returns a profile.
    pub async fn profile(&self, profile: &str) -> Result<ProfileView> {
        self.get(&of_profile(profile, "")).await
    }

    /// Creates a profile.
    pub async fn create_profile(&self, request: &CreateProfile) -> Result<ProfileView> {
        self.call(Method::POST, "/v1/profiles", Some(request)).await
    }

    /// Changes a profile.
    pub async fn change_profile(&self, profile: &str, request: &ChangeProfile) -> Result<ProfileView> {
        self.call(Method::PATCH, &of_profile(profile, ""), Some(request)).await
    }

    /// Starts the sandbox of a profile.
    pub async fn start_profile(&self, profile: &str) -> Result<ProfileView> {
        self.call(Method::POST, &of_profile(profile, "/start"), NONE).await
    }

    /// Stops the sandbox of a profile.
    pub async fn stop_profile(&self, profile: &str) -> Result<ProfileView> {
        self.call(Method::POST, &of_profile(profile, "/stop"), NONE).await
    }

    /// Restarts the sandbox of a profile. With `pull`, its image is pulled first.
    pub async fn restart_profile(&self, profile: &str, pull: bool) -> Result<ProfileView> {
        self.call(Method::POST, &of_profile(profile, "/restart"), Some(&RestartProfile { pull })).await
    }

    /// Deletes a profile and its sandbox.
    pub async fn delete_profile(&self, profile: &str, volumes: bool) -> Result<()> {
        let parameters = query(&[("volumes", Some(volumes.to_string()))]);
        self.done(Method::DELETE, &of_profile(profile, &parameters), NONE).await
    }
}
