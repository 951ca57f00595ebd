package passport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/zap"
)

const (
	// keysFresh is how old keys get before they are fetched anew, behind the
	// requests' backs.
	keysFresh = 5 * time.Minute
	// keysUsable is how old keys may be that are used without a look at the
	// server, which may have withdrawn them: nobody had asked for that long.
	keysUsable = 10 * time.Minute
	// keysKept is how long keys are used while their server is down.
	keysKept = 24 * time.Hour

	// fetchEvery is the least time between the starts of two fetches, whatever
	// key ids clients make up; retryEvery is the pause after one that failed.
	fetchEvery = 10 * time.Second
	retryEvery = 5 * time.Second
	// fetchTimeout bounds a fetch, keysWait a request's wait for it.
	fetchTimeout = 5 * time.Second
	keysWait     = 3 * time.Second

	// maxKeySet is the longest key set in bytes, maxKeys the most keys in it.
	maxKeySet = 512 << 10
	maxKeys   = 100
)

// keySet is the keys that an identity server publishes, fetched when they are
// first needed and kept. There is no goroutine but a fetch that is under way,
// at most one.
type keySet struct {
	url      string
	provider string
	client   *http.Client
	log      *logger

	life  context.Context // of the fetches
	end   context.CancelFunc
	group sync.WaitGroup

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	began   time.Time     // when the fetch that brought keys began; zero: none did
	fault   error         // of the last fetch
	next    time.Time     // when another fetch may begin
	running chan struct{} // closed when the fetch under way has ended; nil: none is
}

func newKeySet(address, provider string, log *logger) *keySet {
	k := &keySet{url: address, provider: provider, log: log}
	k.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			ForceAttemptHTTP2:      true,
			DisableKeepAlives:      true, // the next fetch is minutes away
			MaxResponseHeaderBytes: 64 << 10,
		},
		// Whoever can make the server redirect must not choose the keys.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	k.life, k.end = context.WithCancel(context.Background())
	return k
}

// find returns the keys that choose picks of the set; none if the token's key is
// not published. The error means that it could not be found out, because the
// server does not answer.
func (k *keySet) find(ctx context.Context, choose func([]jose.JSONWebKey) []jose.JSONWebKey) ([]jose.JSONWebKey, error) {
	ctx, cancel := context.WithTimeout(ctx, keysWait)
	defer cancel()
	keys, err := k.current(ctx)
	if err != nil {
		return nil, err
	}
	if chosen := choose(keys); len(chosen) > 0 {
		return chosen, nil
	}
	// The server may sign with a key that it did not have the last time.
	k.mu.Lock()
	wait := k.fetch()
	k.mu.Unlock()
	if err := k.await(ctx, wait); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if chosen := choose(k.keys); len(chosen) > 0 {
		return chosen, nil
	}
	return nil, k.fault
}

// current returns the keys, waiting for a fetch if there are none that may be
// used without.
func (k *keySet) current(ctx context.Context) ([]jose.JSONWebKey, error) {
	keys, wait := k.peek()
	if keys != nil {
		return keys, nil
	}
	err := k.await(ctx, wait)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.have():
		return k.keys, nil // even if the wait was in vain: the server is down
	case err != nil:
		return nil, err
	case k.fault != nil:
		return nil, k.fault
	}
	return nil, errKeysAway
}

// peek begins a fetch if the keys are no longer fresh. It returns the keys, or
// nil if the fetch should be waited for.
func (k *keySet) peek() (keys []jose.JSONWebKey, wait <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age := time.Since(k.began)
	if !k.have() || age >= keysFresh {
		wait = k.fetch()
	}
	// While the server fails, requests don't wait for each new attempt.
	if k.have() && (age < keysUsable || k.fault != nil) {
		return k.keys, wait
	}
	return nil, wait
}

// have reports whether there are keys that may still be used.
func (k *keySet) have() bool { return !k.began.IsZero() && time.Since(k.began) < keysKept }

var errKeysAway = errors.New("the identity server's keys are not to be had in time")

// await waits for a fetch to end. Nothing to wait for is no error.
func (k *keySet) await(ctx context.Context, fetch <-chan struct{}) error {
	if fetch == nil {
		return nil
	}
	select {
	case <-fetch:
		return nil
	case <-ctx.Done():
		return errKeysAway
	}
}

// fetch returns a channel that is closed when the fetch under way ends, after
// having begun one if it is time, else nil. k.mu is held.
func (k *keySet) fetch() <-chan struct{} {
	if k.running != nil {
		return k.running
	}
	began := time.Now()
	if began.Before(k.next) || k.life.Err() != nil {
		return nil
	}
	done := make(chan struct{})
	k.running = done
	k.group.Go(func() {
		// Not the request's context: others may be waiting too.
		ctx, cancel := context.WithTimeout(k.life, fetchTimeout)
		defer cancel()
		keys, err := k.get(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		defer close(done)
		k.running = nil
		if err != nil {
			k.fault, k.next = fmt.Errorf("fetch the identity server's keys: %w", err), time.Now().Add(retryEvery)
			k.log.warn("keys not fetched", zap.String("provider", k.provider), zap.Error(err))
			return
		}
		k.keys, k.began, k.fault, k.next = keys, began, nil, began.Add(fetchEvery)
		k.log.debug("keys fetched", zap.String("provider", k.provider), zap.Int("keys", len(keys)))
	})
	return done
}

// get asks the server for its keys.
func (k *keySet) get(ctx context.Context) ([]jose.JSONWebKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, errors.New("malformed URL")
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "pinboard")
	resp, err := k.client.Do(req)
	if err != nil {
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err // without the URL, whose query may hold a key
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %d, not 200", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(text) > maxKeySet {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxKeySet)
	}
	return parseKeySet(text)
}

// parseKeySet returns the public keys of a set that may verify signatures. Keys
// that are not understood are left out (RFC 7517, section 5); a set without any
// is one whose keys were all withdrawn.
func parseKeySet(text []byte) ([]jose.JSONWebKey, error) {
	var set map[string]json.RawMessage
	var list []json.RawMessage
	if json.Unmarshal(text, &set) != nil || json.Unmarshal(set["keys"], &list) != nil || list == nil {
		return nil, errors.New(`the answer is not a key set: an object with the list "keys"`)
	}
	if len(list) > maxKeys {
		return nil, fmt.Errorf("the answer has more than %d keys", maxKeys)
	}
	keys := []jose.JSONWebKey{}
	for _, raw := range list {
		var key jose.JSONWebKey
		var more struct {
			Operations []string `json:"key_ops"`
		}
		if json.Unmarshal(raw, &more) != nil || json.Unmarshal(raw, &key) != nil || !key.IsPublic() {
			continue
		}
		if key.Use != "" && key.Use != "sig" || more.Operations != nil && !slices.Contains(more.Operations, "verify") {
			continue
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// close ends the fetch under way, and begins no other one.
func (k *keySet) close() {
	k.mu.Lock() // no fetch is between its check and its start
	k.end()
	k.mu.Unlock()
	k.group.Wait()
}
