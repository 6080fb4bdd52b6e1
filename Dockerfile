# syntax=docker/dockerfile:1
# One binary on a distroless base: no shell, no package manager, not root, and nothing that it has to
# write: `docker run --read-only --cap-drop ALL --security-opt no-new-privileges` is fine.
#
#   docker build -t tidegate .
#   docker run --read-only -p 8080:8080 -e TIDEGATE_UPSTREAM=http://app:3000 tidegate
#   docker run --read-only -p 8080:8080 -v ./proxy.toml:/etc/tidegate/proxy.toml:ro tidegate

FROM rust:1.95-slim-bookworm AS build
# For the allocator.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Debug lines are for profiles; the symbols' names stay, for panics. Compiled by which way requests go.
ENV CARGO_PROFILE_RELEASE_DEBUG=none \
    RUSTFLAGS="-Cprofile-use=/src/bench/release.profdata -Cllvm-args=-no-pgo-warn-mismatch"
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin tidegate && cp target/release/tidegate /tidegate
# For a volume with `[store] file`: a new volume has the owner of this folder.
RUN mkdir /state

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="tidegate" \
      org.opencontainers.image.description="A rate-limiting reverse proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/tidegate/tidegate"
COPY --from=build /tidegate /usr/local/bin/tidegate
COPY deploy/docker/proxy.toml /etc/tidegate/proxy.toml
COPY --from=build --chown=65532:65532 /state /var/lib/tidegate
WORKDIR /etc/tidegate
EXPOSE 8080
# By number, so that Kubernetes sees that it is not root.
USER 65532:65532
# An orderly end: requests under way have `drain_timeout`.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=4s --start-period=5s --retries=3 \
    CMD ["/usr/local/bin/tidegate", "health"]
ENTRYPOINT ["/usr/local/bin/tidegate"]
CMD ["run", "-c", "/etc/tidegate/proxy.toml"]
