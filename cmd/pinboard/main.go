// Command pinboard is the standalone server: a pinboard on its own, configured
// by environment variables (see pinboard.ReadEnvironment and the README). With the
// name of a command, such as "pinboard workers", it asks a server that runs: see
// "pinboard help" and docs/fleet.md.
//
// The server exits with status 2 when a variable is wrong, after one line on standard
// error for each. On SIGTERM, SIGHUP or an interrupt it stops accepting, tells clients with the
// answers of the next second that their connections end, ends event streams and
// WebSockets, lets requests end for up to 20 s in all, and exits with 0. A second SIGTERM
// or interrupt cuts what is left.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/cli"
	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/passport"
)

func main() {
	stop, cut := interrupts()
	if args := os.Args[1:]; len(args) > 0 && args[0] != "serve" {
		os.Exit(cli.Run(stop, args, os.LookupEnv, os.Stdout, os.Stderr))
	}
	if len(os.Args) > 2 {
		fmt.Fprintln(os.Stderr, "pinboard: serve takes no arguments: it is configured by environment variables")
		os.Exit(2)
	}
	os.Exit(run(stop, cut, os.LookupEnv))
}

func run(ctx, cut context.Context, lookup func(string) (string, bool)) (status int) {
	vars := &variables{lookup: lookup}
	env, err := vars.read()
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintln(os.Stderr, "pinboard:", strings.TrimSpace(line))
		}
		return 2
	}
	var certified *certificate // nil for plain HTTP
	if env.CertFile != "" {
		if certified, err = readCertificate(env.CertFile, env.KeyFile); err != nil {
			fmt.Fprintln(os.Stderr, "pinboard:", err)
			return 2
		}
	}
	log, err := zap.NewProduction(zap.AddStacktrace(zap.DPanicLevel))
	if err != nil {
		fmt.Fprintln(os.Stderr, "pinboard: start logging:", err)
		return 1
	}
	log = leak.Logger(log)
	defer func() { _ = log.Sync() }()
	vars.warn(os.Environ(), log)
	defer runtime.KeepAlive(newFloor(lookup))
	err = serve(ctx, cut, env, certified, log)
	if taken, ok := errors.AsType[*notListening](err); ok {
		fmt.Fprintln(os.Stderr, "pinboard:", taken)
		return 2
	}
	if err != nil {
		log.Error("stopped", zap.Error(err))
		return 1
	}
	return 0
}

// notListening says that a variable names an address that can't be listened on.
type notListening struct {
	variable string
	error
}

func (e *notListening) Error() string { return e.variable + ": " + e.error.Error() }

// serve serves until ctx ends, and then lets requests end until cut does.
func serve(ctx, cut context.Context, env pinboard.Environment, certified *certificate, log *zap.Logger) error {
	env.Options.Logger = log
	env.Options.DetachStreams = true // nothing is around the pinboard here
	if std, ok := env.Options.Passport.(*passport.Standard); ok {
		std.LogTo(log)
		defer func() { _ = std.Close() }()
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(int(env.Port)))
	if err != nil {
		return &notListening{"PORT", err}
	}
	defer func() { _ = listener.Close() }()
	limited := limitConnections(listener, &env, log)
	metrics, err := tellMetrics(ctx, &env, limited, log)
	if err != nil {
		return err
	}
	defer metrics.close() // last, so that the end can be watched
	if env.AccessLog {
		env.Options.AccessLog = accessLog()
	}
	if env.Redis != nil {
		client, err := dial(ctx, *env.Redis, log)
		if err != nil {
			return nil // told to stop before Redis was there
		}
		defer client.Close()
		env.Options.Redis = client
	}
	pb, err := pinboard.New(env.Options)
	if err != nil {
		return err
	}
	limits := pb.Limits()
	last := &leaving{next: keepWorkers(pb)}
	server := &http.Server{
		Handler:           last,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       75 * time.Second,
		MaxHeaderBytes:    limits.URLBytes + limits.HeaderBytes + 4*limits.HeaderLines, // with ": " and the ends of lines
		ErrorLog:          zap.NewStdLog(log.Named("http")),
		ConnState:         limited.follow,
		ConnContext:       limited.context,
	}
	speak(server, env.H2C, certified, log)
	// Runs once the listener is closed, so that no new request is turned away.
	server.RegisterOnShutdown(func() { _ = pb.Close() })
	failed := make(chan error, 1)
	go func() {
		if certified != nil {
			failed <- server.ServeTLS(limited, "", "")
			return
		}
		failed <- server.Serve(limited)
	}()
	log.Info("listening", zap.Stringer("addr", listener.Addr()),
		zap.Int("maxConnections", limited.most), zap.Int("maxConnectionsPerAddress", limited.each))
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	_ = listener.Close()
	<-failed // with that, and nothing accepts any more
	shutDown(cut, env.ShutdownDelay, limited, last, server, pb, log)
	return nil
}

// Limits on HTTP/2 connections.
const (
	maxStreams = 250
	// streamBuffer and connBuffer are how many bytes of bodies wait for a
	// worker that does not read: a few of those hold up nobody else's on the
	// same connection. 4 MiB is more than net/http takes.
	streamBuffer = 512 << 10
	connBuffer   = 4<<20 - 1
	// A connection is asked for a sign of life after pingAfter of silence, and
	// given up after writeWait in which nothing could be written to it: clients
	// vanish, and a stream would not notice.
	pingAfter = 30 * time.Second
	writeWait = 30 * time.Second
)

// speak says which protocols the server speaks: HTTP/1.1 always, HTTP/2 over
// TLS and, if h2c, without it.
func speak(server *http.Server, h2c bool, certified *certificate, log *zap.Logger) {
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(h2c)
	server.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
		SendPingTimeout: pingAfter, WriteByteTimeout: writeWait,
	}
	if certified != nil {
		certified.logTo(log)
		server.TLSConfig = &tls.Config{GetCertificate: certified.get, MinVersion: tls.VersionTLS12}
	}
}
