//! A small API with limits of its own. Run it with `cargo run --example axum_limits`, then ask it
//! four times: `curl -i -X POST http://127.0.0.1:3000/login`.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use tidegate::config::{environment, parse_limits};
use tidegate::layer::LimitLayer;

const LIMITS: &str = r#"
[limit.default]
rate = "100/min"

[limit.login]
rate = "3/min"

[[route]]
path    = "/login"
methods = ["POST"]
limits  = ["login"]
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (limits, warnings) = parse_limits("limits.toml", LIMITS, &environment)?;
    eprint!("{warnings}");
    let limits = LimitLayer::new(limits, |extensions| {
        Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip())
    })?;
    limits.settled().await;
    let api = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(limits)
        .into_make_service_with_connect_info::<SocketAddr>();
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:3000");
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening  http://{}", listener.local_addr()?);
    axum::serve(listener, api).await?;
    Ok(())
}
