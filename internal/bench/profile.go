package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	serverPackage = "github.com/pinboard-go/pinboard/cmd/pinboard"
	// profileVariable says where the profiled server writes: see
	// testdata/profiled.go.txt.
	profileVariable = "PINBOARD_BENCH_PROFILE"
	// profiledStreams is how many event streams are opened, for watching each time.
	profiledStreams = 500
	// posts is how many GETs there are for each POST, and turns how often the loads
	// take turns.
	posts, turns = 3, 4
)

// profile makes the profile that `go build` optimizes the standalone server by
// (cmd/pinboard/default.pgo): where its processor time goes when it proxies GETs,
// POSTs, event streams and WebSockets, with its directory in Redis. What is profiled
// is the server itself, built without a profile and with one file more.
func profile(ctx context.Context, s settings) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", serverPackage).Output()
	if err != nil {
		return fmt.Errorf("look for %s: %w", serverPackage, err)
	}
	source := string(bytes.TrimSpace(out))
	f, err := startFleet()
	if err != nil {
		return err
	}
	defer f.stop()
	w, err := startStreamWorker(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	program, written := filepath.Join(dir, "pinboard"), filepath.Join(dir, "cpu")
	if err := buildProfiled(ctx, dir, source, program); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	node, err := launch(ctx, dir, program, func(port int) []string {
		return []string{
			"PORT=" + strconv.Itoa(port), "REDIS_URL=redis://" + f.server.Addr(), "PINBOARD_PASSPORT=" + proxyPassport,
			"PINBOARD_LEASE_TTL_MS=" + strconv.FormatInt(time.Hour.Milliseconds(), 10), profileVariable + "=" + written,
		}
	})
	if err != nil {
		return err
	}
	defer node.stop()
	addr := strings.TrimPrefix(node.url, "http://")
	if err := w.register(ctx, addr); err != nil {
		return err
	}
	if err := loadAll(ctx, addr, s.calls); err != nil {
		return err
	}
	if err := errors.Join(node.cmd.Process.Signal(writeProfile), node.cmd.Wait()); err != nil {
		return err
	}
	text, err := os.ReadFile(written)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(source, "default.pgo"), text, 0o644) //nolint:gosec // it is source
}

// buildProfiled builds the server so that it profiles itself.
func buildProfiled(ctx context.Context, dir, source, program string) error {
	added, err := filepath.Abs(filepath.Join(source, "../../internal/bench/testdata/profiled.go.txt"))
	if err != nil {
		return err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(source, "profiled.go"): added}})
	if err != nil {
		return err
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		return err
	}
	return buildServer(ctx, program, "-pgo=off", "-overlay", overlay)
}

// loadAll asks a server for all that it proxies.
func loadAll(ctx context.Context, addr string, calls int) error {
	get := requestLoad{conns: postConns, calls: calls / turns}
	post := requestLoad{conns: postConns, calls: calls / turns / posts, body: bytes.Repeat([]byte("x"), postBytes)}
	for range turns {
		for _, l := range []requestLoad{get, post} {
			if err := l.run(ctx, addr); err != nil {
				return err
			}
		}
		if _, err := echoAll(ctx, addr, message(eventBytes), watching/turns); err != nil {
			return err
		}
	}
	var events load
	defer events.close()
	if err := events.grow(ctx, addr, "sse", profiledStreams); err != nil {
		return err
	}
	return pause(ctx, watching)
}
