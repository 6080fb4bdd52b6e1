//! A small API with limits of its own. Run it with `cargo run -p tidegate-limiter --example
//! axum_limits`, then ask it four times: `curl -i -X POST http://127.0.0.1:3000/login`.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use tidegate_limiter::{Limits, Rate};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limits::new()
        .limit("client", Rate::per_minute(100))
        .limit("login", Rate::per_minute(3))
        .path("/login")
        .build()?;
    let limits =
        limiter.layer(|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
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
