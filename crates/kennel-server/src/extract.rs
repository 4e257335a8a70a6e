//! Reads requests: like the extractors of axum, but every error has the body of this API, and says what was expected.

use crate::app::AppState;
use crate::error::Failure;
use crate::patience::patient;
use axum::body::HttpBody;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kennel_core::Error;
use kennel_types::{ErrorCode, LimitReason};
use serde::de::DeserializeOwned;

/// The largest JSON body.
pub(crate) const MAX_JSON: usize = 16 << 20;

/// A JSON body that is required.
pub(crate) struct Json<T>(pub(crate) T);

/// A JSON body that may be empty, which is the default value.
pub(crate) struct OptionalJson<T>(pub(crate) T);

/// The query of a request.
pub(crate) struct Query<T>(pub(crate) T);

/// The query of a request as it is, for parameters that may be repeated.
pub(crate) struct RawQuery(String);

impl RawQuery {
    /// Takes all values of a parameter that may be repeated. Also returns the rest of the query.
    pub(crate) fn without(&self, name: &str) -> (Vec<String>, String) {
        let (mut values, mut rest) = (Vec::new(), form_urlencoded::Serializer::new(String::new()));
        for (key, value) in form_urlencoded::parse(self.0.as_bytes()) {
            if key == name {
                values.push(value.into_owned());
            } else {
                rest.append_pair(&key, &value);
            }
        }
        (values, rest.finish())
    }
}

impl FromRequestParts<AppState> for RawQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Failure> {
        Ok(Self(parts.uri.query().unwrap_or_default().to_owned()))
    }
}

/// The parameters in the path.
pub(crate) struct Path<T>(pub(crate) T);

/// The bytes of a JSON body, with the hash that `Idempotency-Key` compares.
pub(crate) async fn json_bytes(request: Request) -> Result<Vec<u8>, Failure> {
    let is_json = request.headers().get(header::CONTENT_TYPE).map(|value| {
        let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    });
    let bytes = body_bytes(request, MAX_JSON).await?;
    if is_json == Some(false) && !bytes.is_empty() {
        let error = Error::new(ErrorCode::InvalidConfig, "the body must have the content type application/json");
        return Err(Failure::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    Ok(bytes)
}

/// Reads a whole body of at most `cap` bytes.
pub(crate) async fn body_bytes(request: Request, cap: usize) -> Result<Vec<u8>, Failure> {
    let too_large =
        || Failure::from(Error::limit(LimitReason::TooLarge, format!("the body is larger than {cap} bytes")));
    let (body, stalled) = patient(request.into_body());
    // A client that says how much it will send is refused before it does.
    if HttpBody::size_hint(&body).lower() > cap as u64 {
        return Err(too_large());
    }
    match Limited::new(body, cap).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large()),
        Err(error) => Err(stalled.or(Failure::invalid(format!("read the body: {error}")))),
    }
}

/// Parses a JSON body. The error names the line, the column, and the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    crate::strict::parse(bytes).map_err(|error| Failure::invalid(format!("the body: {error}")))
}

impl<T: DeserializeOwned> FromRequest<AppState> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, Failure> {
        parse(&json_bytes(request).await?).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<AppState> for OptionalJson<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, Failure> {
        let bytes = json_bytes(request).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

impl<T: DeserializeOwned> FromRequestParts<AppState> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Failure> {
        query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// Parses a query. A repeated parameter is a list; numbers and booleans are written as in JSON.
pub(crate) fn query<T: DeserializeOwned>(text: &str) -> Result<T, Failure> {
    axum::extract::Query::<T>::try_from_uri(
        &format!("http://x/?{text}").parse().map_err(|_| Failure::invalid("the query is malformed"))?,
    )
    .map(|query| query.0)
    .map_err(|error| Failure::invalid(format!("the query: {}", error.body_text())))
}

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        let found = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        found.map(|path| Self(path.0)).map_err(|error| Failure::invalid(format!("the path: {}", error.body_text())))
    }
}
