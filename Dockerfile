# syntax=docker/dockerfile:1
# A static-enough binary on a distroless base: no shell, no package manager, not root.

FROM rust:1.95-slim-bookworm AS build
# For the allocator.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY lua lua
COPY docs/diagnostics.md docs/library.md docs/
COPY proxy.toml ./
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked && cp target/release/tidegate /tidegate

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /tidegate /usr/local/bin/tidegate
COPY proxy.toml /etc/tidegate/proxy.toml
EXPOSE 8080
USER nonroot
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["run", "-c", "/etc/tidegate/proxy.toml"]
