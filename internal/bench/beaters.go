package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// doors is how many listeners the workers share, and
	doors = 8
	// joining how many register at a time.
	joining = 32
)

// beaters are workers that do nothing but beat: by HTTP, each on a connection of its
// own, and behind an advertise URL that answers probes. Each also beats at a server
// that does nothing with it.
type beaters struct {
	node, bare string
	client     *http.Client
	servers    []*http.Server
	urls       []string
	all        []*beater
	made       atomic.Int64
	failed     atomic.Int64
	why        atomic.Pointer[string] // the last one failed
	group      sync.WaitGroup
	stopped    context.Context
	cancel     context.CancelFunc
}

type beater struct {
	url, client, secret, session string
}

func startBeaters(node, bare string) (*beaters, error) {
	b := &beaters{node: node, bare: bare, client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1e6, DisableCompression: true}, Timeout: 30 * time.Second,
	}}
	b.stopped, b.cancel = context.WithCancel(context.Background())
	for range doors {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.stop()
			return nil, err
		}
		s := &http.Server{Handler: http.HandlerFunc(answerProbe)}
		b.servers, b.urls = append(b.servers, s), append(b.urls, "http://"+l.Addr().String())
		b.group.Go(func() { _ = s.Serve(l) })
	}
	return b, nil
}

func (b *beaters) stop() {
	b.cancel()
	for _, s := range b.servers {
		_ = s.Close()
	}
	b.group.Wait()
	b.client.CloseIdleConnections()
}

// answerProbe answers for the worker that the path names.
func answerProbe(w http.ResponseWriter, r *http.Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if "/"+path != wire.PathChallenge || r.Header.Get(wire.HeaderProxySecret) != secretOf(name) {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"value": %q}`, valueOf(r.FormValue("challenge")))
}

func secretOf(name string) string     { return strings.Repeat("0", 64-len(name)) + name }
func valueOf(challenge string) string { return "value of " + challenge }
func (w *beater) said() (body []byte) {
	return w.body(map[string]any{"sessionId": w.session, "acks": []string{}})
}
func (w *beater) joined() (body []byte) {
	return w.body(map[string]any{
		"clientId": w.client, "secret": w.secret, "namespaces": []string{"/bench"}, "advertiseUrl": w.url,
		"instances": map[string][]string{},
	})
}

// body is what a registration and a heartbeat have in common, and some more.
func (w *beater) body(more map[string]any) []byte {
	challenge := rand.Text()
	more["headroom"], more["draining"] = 100, false
	more["challenge"], more["challengeValue"] = challenge, valueOf(challenge)
	text, err := json.Marshal(more)
	if err != nil {
		panic(err) // it is text and numbers
	}
	return text
}

// grow has n workers beat.
func (b *beaters) grow(ctx context.Context, n int) error {
	from := len(b.all)
	for i := from; i < n; i++ {
		name := strconv.Itoa(i)
		b.all = append(b.all, &beater{url: b.urls[i%doors] + "/" + name, client: rand.Text(), secret: secretOf(name)})
	}
	fresh := b.all[from:]
	errs := make(chan error, joining)
	var next atomic.Int64
	for range joining {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(fresh) || ctx.Err() != nil {
					errs <- ctx.Err()
					return
				}
				if err := b.join(ctx, fresh[i]); err != nil {
					errs <- err
					return
				}
				b.group.Go(func() { b.beat(fresh[i]) })
			}
		}()
	}
	var failed error
	for range joining {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	return failed
}

// join registers; like a worker it comes again where it is told to.
func (b *beaters) join(ctx context.Context, w *beater) error {
	for {
		status, answer, err := b.post(ctx, b.node+wire.PathRegister, w.joined())
		switch {
		case err != nil:
			return err
		case status == http.StatusServiceUnavailable:
			if err := pause(ctx, time.Second); err != nil {
				return err
			}
			continue
		case status != http.StatusOK:
			return fmt.Errorf("registration: status %d: %s", status, answer)
		}
		var registered struct{ SessionID string }
		err = json.Unmarshal(answer, &registered)
		w.session = registered.SessionID
		return err
	}
}

// beat beats until the end, from now on.
func (b *beaters) beat(w *beater) {
	tick := time.NewTicker(beats)
	defer tick.Stop()
	for {
		select {
		case <-b.stopped.Done():
			return
		case <-tick.C:
		}
		body := w.said()
		b.expect(b.post(b.stopped, b.node+wire.PathHeartbeat, body))
		b.made.Add(1)
		b.expect(b.post(b.stopped, b.bare, body))
	}
}

// expect counts an answer that is not the one to a heartbeat of a worker that is well,
// and keeps it.
func (b *beaters) expect(status int, answer []byte, err error) {
	if err == nil && status == http.StatusOK && !bytes.Contains(answer, []byte("degraded")) || b.stopped.Err() != nil {
		return
	}
	b.failed.Add(1)
	why := fmt.Sprintf("%d %.200s", status, answer)
	if err != nil {
		why = err.Error()
	}
	b.why.Store(&why)
}

func (b *beaters) post(ctx context.Context, url string, body []byte) (status int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+beatToken)
	res, err := b.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}
