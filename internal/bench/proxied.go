package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/passport"
)

// proxyVariable has this binary be a proxy, in a process of its own, whose memory and
// processor time can be read: it says of which kind, and workerVariable where the
// worker is, redisVariable where a Redis. A proxy prints its address, and ends when
// its standard input does.
const (
	proxyVariable, workerVariable = "PINBOARD_BENCH_PROXY", "PINBOARD_BENCH_WORKER"
	redisVariable                 = "PINBOARD_BENCH_REDIS"

	proxyToken    = "token-of-a-worker-on-the-bench"
	clientToken   = "token-of-a-client-on-the-bench"
	proxyPassport = `{"providers": [{"type": "staticToken", "id": "bench", "keys": [{"name": "worker", "token": "` + proxyToken + `",
		"scopes": ["pinboard:worker"], "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}},
		{"name": "client", "token": "` + clientToken + `"}]}],
		"namespaces": {"*": {"allow": "anonymous"}}}`

	// proxiedIDs is how many instances the streams are spread over, all of one worker.
	proxiedIDs = 100
)

// Kinds of proxies.
const (
	bareProxy     = "bare" // a bare httputil.ReverseProxy, the yardstick
	pinboardProxy = "pinboard"
	attachedProxy = "pinboard, not detached"
	redisProxy    = "pinboard, Redis"
)

// beProxy serves as a proxy.
func beProxy(kind, worker string) error {
	var handler http.Handler = bare(worker)
	if kind != bareProxy {
		who, err := passport.Parse([]byte(proxyPassport), os.LookupEnv)
		if err != nil {
			return err
		}
		opts := pinboard.Options{Passport: who, LeaseTTL: time.Hour, DetachStreams: kind != attachedProxy}
		if kind != redisProxy {
			opts.Store = pinboard.MemoryStore()
		} else if opts.Redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv(redisVariable)}}); err != nil {
			return err
		}
		if handler, err = pinboard.New(opts); err != nil {
			return err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return server.Serve(listener)
}

// copyBuffers are a httputil.BufferPool.
type copyBuffers struct{ sync.Pool }

func (p *copyBuffers) Get() []byte  { return *p.Pool.Get().(*[]byte) } // see bare
func (p *copyBuffers) Put(b []byte) { p.Pool.Put(&b) }

// bare proxies to one worker, with what makes a ReverseProxy fast.
func bare(worker string) http.Handler {
	return &httputil.ReverseProxy{
		Transport:  &http.Transport{MaxIdleConnsPerHost: 8192, DisableCompression: true},
		BufferPool: &copyBuffers{sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}},
		ErrorLog:   log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: worker})
			r.Out.Host = r.In.Host
		},
	}
}

// proxied is a proxy that runs.
type proxied struct {
	cmd  *exec.Cmd
	end  io.Closer // its standard input
	addr string
}

// startProxy starts one, which knows the worker, with further variables.
func startProxy(ctx context.Context, kind string, w *streamWorker, env ...string) (*proxied, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &proxied{cmd: exec.CommandContext(ctx, self)} //nolint:gosec // this binary
	p.cmd.Env = append(os.Environ(), proxyVariable+"="+kind, workerVariable+"="+w.addr, "GOMAXPROCS=1")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = os.Stderr
	if p.end, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	p.addr = strings.TrimSpace(line)
	if err == nil && kind != bareProxy {
		err = w.register(ctx, p.addr)
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start %s: %w", kind, err)
	}
	return p, nil
}

// stop ends the proxy, and waits for that.
func (p *proxied) stop() {
	_ = p.end.Close()
	_ = p.cmd.Wait()
}

// resident returns how much of the proxy's memory is resident, in bytes.
func (p *proxied) resident() (int64, error) {
	text, err := os.ReadFile(p.file("statm"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// cpu returns the processor time of the proxy so far.
func (p *proxied) cpu() (all time.Duration, err error) {
	tasks, err := filepath.Glob(p.file("task/*/schedstat"))
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		all += time.Duration(ns)
	}
	return all, nil
}

func (p *proxied) file(name string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), name)
}

// register registers the worker with a pinboard, as the owner of all ids.
func (w *streamWorker) register(ctx context.Context, pinboard string) error {
	ids := make([]string, proxiedIDs)
	for i := range ids {
		ids[i] = proxiedID(i)
	}
	body, err := json.Marshal(map[string]any{
		"clientId": rand.Text(), "secret": rand.Text(), "namespaces": []string{"/bench"}, "advertiseUrl": "http://" + w.addr,
		"headroom": headroom, "draining": false, "challenge": "bench", "challengeValue": challengeValue,
		"instances": map[string][]string{"/bench": ids},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+pinboard+"/registry/register", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+proxyToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("register: status %d: %s", resp.StatusCode, answer)
	}
	return nil
}

func proxiedID(n int) string { return "stream-" + strconv.Itoa(n%proxiedIDs) }
