package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	weak "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
	sdk "github.com/pinboard-go/pinboard/worker"
)

const (
	// envServe, in its environment, makes a process of this program one whose
	// server is measured, and says which one.
	envServe = "PINBOARD_BENCH_SERVE"
	// benchSession is the session that the worker has.
	benchSession = "bench-session"
	// workerIDs is how many ids the requests are for, workerConns how many
	// connections ask, accounts how many clients a kind with clients has.
	workerIDs, workerConns, accounts = 1000, 64, 1000
	// reuse is for how many requests an attestation is sent: what a server on one
	// processor gets in a second. It is not a second of the clock, because on a busy
	// machine more of the requests would then bring a new one.
	reuse = 20_000
	// idle is how many instances the memory is measured of.
	idle = 100_000
)

// The servers that are measured, by what envServe says.
const (
	plainServer = "plain" // net/http's, without a worker
	ownServer   = "own"   // the worker's
	hostsServer = "hosts" // net/http's, with a worker in it
)

// workers measures a worker beside the same handler on plain net/http, asked by
// this process with the same bytes; and the memory of idle instances. Each kind
// has a process of its own with one processor (GOMAXPROCS): in one process, what
// one kind leaves on the heap decides how often the next one's garbage is
// collected.
func workers(ctx context.Context, s settings) error {
	if which := os.Getenv(envServe); which != "" {
		return serveWorker(ctx, which, os.Stdin, os.Stdout)
	}
	before := runtime.GOMAXPROCS(1)
	kinds, stop, err := workerKinds(ctx, s.calls)
	if err == nil {
		err = takeTurns(ctx, s.rounds, kinds)
	}
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	if err := report(os.Stdout, kinds); err != nil {
		return err
	}
	runtime.GOMAXPROCS(before)
	return idleMemory(ctx, os.Stdout)
}

// workerKinds starts a server for each kind; stop ends them.
func workerKinds(ctx context.Context, calls int) (kinds []*kind, stop func() error, err error) {
	var started []*measured
	stop = func() error {
		var errs []error
		for _, p := range started {
			errs = append(errs, p.stop())
		}
		return errors.Join(errs...)
	}
	for _, k := range []struct {
		name    string
		atLeast float64
		which   string
		tokens  *tokens
	}{
		{"plain net/http", 0, plainServer, &tokens{}},
		{"worker, anonymous", 0.9, ownServer, &tokens{}},
		{fmt.Sprintf("worker, %d accounts", accounts), 0.9, ownServer, &tokens{clients: accounts}},
		{"worker, no attestation twice", 0, ownServer, &tokens{fresh: true}},
		{"worker in a server of the host's, anonymous", 0, hostsServer, &tokens{}},
	} {
		p, err := startMeasured(ctx, k.which)
		if err != nil {
			return nil, stop, err
		}
		started = append(started, p)
		k.tokens.secret = p.Secret
		one := &kind{name: k.name, atLeast: k.atLeast, round: p.asked(calls, k.tokens.next)}
		if len(kinds) > 0 {
			one.against = kinds[0]
		}
		kinds = append(kinds, one)
	}
	return kinds, stop, nil
}

// hello is the handler of both: 100 bytes of JSON.
func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, helloText)
}

var helloText = `{"text":"` + strings.Repeat("x", 89) + `"}`

// agreeable is a pinboard that agrees to everything, for one worker. It keeps the
// secret, which arrives with the registration.
type agreeable struct{ secret atomic.Pointer[wire.Secret] }

// RoundTrip implements http.RoundTripper.
func (a *agreeable) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(r.URL.Path, wire.PathRegister) {
		reg, err := wire.ParseRegister(body)
		if err != nil {
			return nil, err
		}
		a.secret.Store(&reg.Secret)
	}
	rec := httptest.NewRecorder()
	_ = json.NewEncoder(rec).Encode(wire.Registered{SessionID: benchSession, ExpiresInMs: time.Hour.Milliseconds()})
	return rec.Result(), nil
}

// benchWorker returns a worker that is registered, and its secret.
func benchWorker(ctx context.Context) (*sdk.Worker, wire.Secret, error) {
	pb := &agreeable{}
	w, err := sdk.New(sdk.Options{
		PinboardURL: "http://pinboard.invalid", Token: "bench", AdvertiseURL: "http://worker.invalid",
		Transport: pb, MaxInstances: idle,
	})
	if err != nil {
		return nil, wire.Secret{}, err
	}
	handler := http.HandlerFunc(hello)
	if err := w.Host("/bench", func(*sdk.Instance) (http.Handler, error) { return handler, nil }); err != nil {
		return nil, wire.Secret{}, err
	}
	if err := w.Start(); err != nil {
		return nil, wire.Secret{}, err
	}
	if err := w.AwaitReady(ctx); err != nil {
		return nil, wire.Secret{}, err
	}
	return w, *pb.secret.Load(), nil
}

// address is what a process with a server says when it is ready.
type address struct {
	Addr   string
	Secret string // that attestations for it are signed with
}

// serveWorker serves until the end of in. It answers each line with the processor
// time that it has used so far, in seconds.
func serveWorker(ctx context.Context, which string, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	said := address{Addr: l.Addr().String(), Secret: rand.Text()} // nobody's
	server := likeWorkers(http.HandlerFunc(hello))
	serve := server.Serve
	if which != plainServer {
		w, secret, err := benchWorker(ctx)
		if err != nil {
			return err
		}
		said.Secret, server.Handler = secret.Reveal(), w
		if which == ownServer {
			serve = func(l net.Listener) error { return w.Serve(ctx, l) }
		}
	}
	go func() { _ = serve(l) }() // until the process ends
	enc := json.NewEncoder(out)
	if err := enc.Encode(said); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := enc.Encode(processorTime()); err != nil {
			return err
		}
	}
	return nil
}

// likeWorkers returns a server with the timeouts of a worker's own.
func likeWorkers(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
}

// measured is a process with one of the servers.
type measured struct {
	address
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startMeasured(ctx context.Context, which string) (*measured, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &measured{cmd: exec.CommandContext(ctx, self, "-part", "worker")}
	p.cmd.Env = append(os.Environ(), envServe+"="+which, "GOMAXPROCS=1")
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	return p, p.out.Decode(&p.address)
}

func (p *measured) stop() error { return errors.Join(p.in.Close(), p.cmd.Wait()) }

func (p *measured) used() (seconds float64, err error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, err
	}
	return seconds, p.out.Decode(&seconds)
}

// asked measures n requests.
func (p *measured) asked(n int, token func() (string, error)) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		before, err := p.used()
		if err != nil {
			return sample{}, err
		}
		begun := time.Now()
		if err := askAll(ctx, p.Addr, n, token); err != nil {
			return sample{}, err
		}
		took := time.Since(begun).Seconds()
		after, err := p.used()
		return sample{rate: float64(n) / took, cpu: float64(n) / (after - before)}, err
	}
}

// askAll makes n requests on connections of its own.
func askAll(ctx context.Context, addr string, n int, token func() (string, error)) error {
	var group sync.WaitGroup
	errs := make([]error, workerConns)
	for c := range errs {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		group.Go(func() { errs[c] = askOne(conn, max(1, n/workerConns), token) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func askOne(conn net.Conn, n int, token func() (string, error)) error {
	var request, answer []byte
	buf := make([]byte, 4096)
	for range n {
		text, err := token()
		if err != nil {
			return err
		}
		request = appendRequest(request[:0], weak.IntN(workerIDs), text)
		if _, err := conn.Write(request); err != nil {
			return err
		}
		if answer == nil { // all are as long as the first one
			got, err := conn.Read(buf)
			if err != nil {
				return err
			}
			answer = buf[:got]
		} else if _, err := io.ReadFull(conn, answer); err != nil {
			return err
		}
		if got := string(answer); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got, helloText) {
			return fmt.Errorf("unexpected answer %q", got)
		}
	}
	return nil
}

// appendRequest appends a request as a node of pinboard sends it for a browser.
func appendRequest(b []byte, id int, token string) []byte {
	return fmt.Appendf(b, "GET /bench/thread-%d/messages?after=17 HTTP/1.1\r\nHost: app.example\r\n"+
		"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n"+
		"Accept: application/json\r\nAccept-Language: en-GB,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br\r\n"+
		"Cookie: theme=dark; seen=1\r\nX-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: app.example\r\n"+
		"%s: 1764460800000000\r\n%s: %s\r\n\r\n", id, wire.HeaderEpoch, wire.HeaderAttestation, token)
}

// tokens mints attestations as a node does: one a second (reuse) for each client,
// or, where they are to be fresh, one for each request.
type tokens struct {
	secret  string
	clients int // 0 for anonymous ones alone
	fresh   bool

	mu     sync.Mutex
	minted []string
	turn   int
}

func (t *tokens) next() (string, error) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn++
	if t.fresh {
		return t.mint(now, t.turn)
	}
	if t.turn%reuse == 0 {
		t.minted = t.minted[:0]
	}
	i := t.turn % max(1, t.clients)
	for len(t.minted) <= i {
		text, err := t.mint(now, len(t.minted))
		if err != nil {
			return "", err
		}
		t.minted = append(t.minted, text)
	}
	return t.minted[i], nil
}

func (t *tokens) mint(now time.Time, client int) (string, error) {
	claims := attest.Claims{Audience: benchSession}
	if t.clients > 0 || t.fresh {
		claims.Account = &attest.Account{
			Subject: fmt.Sprintf("user-%d", client), Scopes: []string{"chat"}, Claims: map[string]any{"tenant": "a"},
		}
	}
	return attest.Mint(wire.NewSecret(t.secret), claims, now)
}

// idleMemory prints what idle instances take.
func idleMemory(ctx context.Context, out io.Writer) error {
	w, secret, err := benchWorker(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = w.Shutdown(context.Background()) }()
	t := &tokens{secret: secret.Reveal()}
	activate := func(from, to int) error {
		for i := from; i < to; i++ {
			token, err := t.next()
			if err != nil {
				return err
			}
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(appendRequest(nil, i, token)))))
			if err != nil {
				return err
			}
			rec := httptest.NewRecorder()
			if w.ServeHTTP(rec, r.WithContext(ctx)); rec.Code != http.StatusOK {
				return fmt.Errorf("activate: status %d: %s", rec.Code, rec.Body)
			}
		}
		return nil
	}
	if err := activate(0, 1); err != nil {
		return err
	}
	before := memory()
	if err := activate(1, idle); err != nil {
		return err
	}
	after := memory()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "idle instances\tbytes of each, heap\tstacks\tgoroutines more")
	fmt.Fprintf(table, "%d\t%.0f\t%.0f\t%d\n", idle, (after.heap-before.heap)/idle, (after.stacks-before.stacks)/idle,
		after.goroutines-before.goroutines)
	return table.Flush()
}

type memoryUse struct {
	heap, stacks float64
	goroutines   int
}

func memory() memoryUse {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memoryUse{float64(m.HeapAlloc), float64(m.StackInuse), runtime.NumGoroutine()}
}
