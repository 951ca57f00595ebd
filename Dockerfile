# The standalone server, or with --build-arg PACKAGE=./examples/counter a worker:
# one static program and the certificates of public authorities, no shell.
#
#   docker build -t pinboard .
#
# There is no HEALTHCHECK: what the image holds depends on PACKAGE, and whoever
# runs it asks /healthz, or /_pinned/ready of a worker, for readiness. Neither is
# a reason to restart.
ARG GO_VERSION=1.26.11

FROM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG PACKAGE=./cmd/pinboard
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w" -o /out/app ${PACKAGE}

FROM scratch
LABEL org.opencontainers.image.title="pinboard" \
      org.opencontainers.image.description="One live instance per (namespace, id) in a whole fleet, at a stable URL" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/app /app
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/app"]
