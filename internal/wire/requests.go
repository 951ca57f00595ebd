package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

const (
	maxTokenBytes = 512  // clientId, secret, challenge, …
	maxURLBytes   = 2048 // advertiseUrl
	maxNamespaces = 1000 // of one worker: each costs the store a step
)

// What a registration wants of another deployment's workers (protocol §7).
const (
	TakeoverWindDown = "wind_down"
	TakeoverDeny     = "deny"
)

// Ref names one instance.
type Ref struct {
	Namespace string `json:"ns"`
	ID        string `json:"id"`
}

// Register is the body of POST /registry/register (protocol §2).
type Register struct {
	ClientID       string
	Secret         Secret
	Namespaces     []string
	AdvertiseURL   string
	Headroom       float64
	Draining       bool
	Challenge      string
	ChallengeValue Secret
	PrevSessionID  string
	// Instances maps a namespace to the ids that are live in the worker. The
	// names in it are as sent: they may be invalid.
	Instances map[string][]string

	Hostname, Env, Takeover string
	Envs                    map[string]string
	Epoch                   int64
}

// ParseRegister reads a registration. The error is a *FieldError where a field
// is missing, of the wrong type or out of range. Namespaces are checked and
// come out sorted, each once; the host name comes out normalised; the advertise
// URL is not looked at.
func ParseRegister(body []byte) (*Register, error) {
	o, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	r := &Register{
		ClientID:       o.text("clientId", maxTokenBytes),
		Secret:         NewSecret(o.text("secret", maxTokenBytes)),
		AdvertiseURL:   o.text("advertiseUrl", maxURLBytes),
		Headroom:       o.amount("headroom"),
		Draining:       o.boolean("draining"),
		Challenge:      o.text("challenge", maxTokenBytes),
		ChallengeValue: NewSecret(o.text("challengeValue", maxTokenBytes)),
		PrevSessionID:  o.optionalText("prevSessionId", maxTokenBytes),
		Hostname:       o.optionalText("hostname", maxTokenBytes),
		Env:            o.optionalText("env", maxTokenBytes),
		Takeover:       o.optionalText("takeover", maxTokenBytes),
	}
	if o.need("namespaces") {
		r.Namespaces = o.texts("namespaces")
		r.checkNamespaces(o)
	}
	if o.has("instances") {
		r.Instances = o.textLists("instances")
	}
	if o.has("envs") {
		r.Envs = o.textMap("envs")
	}
	if o.has("epoch") && decode(o, "epoch", "an integer", &r.Epoch) && r.Epoch < 0 {
		o.fail("epoch", "must be at least 0")
	}
	r.checkBinding(o)
	if o.err != nil {
		return nil, o.err
	}
	return r, nil
}

// checkBinding normalises the host name, and checks what may be said only
// together (protocol §7).
func (r *Register) checkBinding(o *object) {
	r.Hostname = o.hostname(r.Hostname)
	for ns, env := range r.Envs {
		if len(env) > maxTokenBytes {
			o.fail(fmt.Sprintf("envs[%q]", ns), fmt.Sprintf("must be at most %d bytes", maxTokenBytes))
		}
	}
	if o.has("takeover") && r.Takeover != TakeoverWindDown && r.Takeover != TakeoverDeny {
		o.fail("takeover", `must be "wind_down" or "deny"`)
	}
	for _, field := range []string{"env", "envs", "takeover"} {
		if o.has(field) && !o.has("hostname") {
			o.fail(field, "needs a hostname")
		}
	}
}

func (r *Register) checkNamespaces(o *object) {
	if len(r.Namespaces) == 0 || len(r.Namespaces) > maxNamespaces {
		o.fail("namespaces", fmt.Sprintf("must name from 1 to %d namespaces", maxNamespaces))
		return
	}
	for i, ns := range r.Namespaces {
		if err := CheckNamespace(ns); err != nil {
			o.fail(fmt.Sprintf("namespaces[%d]", i), err.Error())
		}
	}
	slices.Sort(r.Namespaces)
	r.Namespaces = slices.Compact(r.Namespaces)
}

// MarshalJSON writes the registration as a worker sends it, secret included: a
// *Register is a body to send, not a value to log.
func (r *Register) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ClientID       string              `json:"clientId"`
		Secret         string              `json:"secret"`
		Namespaces     []string            `json:"namespaces"`
		AdvertiseURL   string              `json:"advertiseUrl"`
		Headroom       float64             `json:"headroom"`
		Draining       bool                `json:"draining"`
		Challenge      string              `json:"challenge"`
		ChallengeValue string              `json:"challengeValue"`
		PrevSessionID  string              `json:"prevSessionId,omitempty"`
		Instances      map[string][]string `json:"instances,omitempty"`
		Hostname       string              `json:"hostname,omitempty"`
		Env            string              `json:"env,omitempty"`
		Takeover       string              `json:"takeover,omitempty"`
		Envs           map[string]string   `json:"envs,omitempty"`
		Epoch          int64               `json:"epoch,omitempty"`
	}{
		r.ClientID, r.Secret.Reveal(), r.Namespaces, r.AdvertiseURL, r.Headroom, r.Draining,
		r.Challenge, r.ChallengeValue.Reveal(), r.PrevSessionID, r.Instances,
		r.Hostname, r.Env, r.Takeover, r.Envs, r.Epoch,
	})
}

// Heartbeat is the body of POST /registry/heartbeat (protocol §2).
type Heartbeat struct {
	SessionID      string
	Headroom       float64
	Draining       bool
	Challenge      string
	ChallengeValue Secret
	Acks           []string
}

// MarshalJSON writes the heartbeat as a worker sends it, secret included: a
// *Heartbeat is a body to send, not a value to log.
func (h *Heartbeat) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		SessionID      string   `json:"sessionId"`
		Headroom       float64  `json:"headroom"`
		Draining       bool     `json:"draining"`
		Challenge      string   `json:"challenge"`
		ChallengeValue string   `json:"challengeValue"`
		Acks           []string `json:"acks,omitempty"`
	}{h.SessionID, h.Headroom, h.Draining, h.Challenge, h.ChallengeValue.Reveal(), h.Acks})
}

// ParseHeartbeat reads a heartbeat; see ParseRegister for its errors.
func ParseHeartbeat(body []byte) (*Heartbeat, error) {
	o, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	h := &Heartbeat{
		SessionID:      o.text("sessionId", maxTokenBytes),
		Headroom:       o.amount("headroom"),
		Draining:       o.boolean("draining"),
		Challenge:      o.text("challenge", maxTokenBytes),
		ChallengeValue: NewSecret(o.text("challengeValue", maxTokenBytes)),
	}
	if o.has("acks") {
		h.Acks = o.texts("acks")
	}
	if o.err != nil {
		return nil, o.err
	}
	return h, nil
}

// Release is one entry of the body of POST /registry/release (protocol §2).
type Release struct {
	SessionID string
	Namespace string
	ID        string
	// Epoch restricts the release to that placement; 0 means any.
	Epoch int64
}

// ParseRelease reads one release or a list of them; see ParseRegister for its
// errors. A namespace or id that is not valid is kept: nothing matches it.
func ParseRelease(body []byte) ([]Release, error) {
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '[' {
		one, err := parseRelease(body)
		if err != nil {
			return nil, err
		}
		return []Release{one}, nil
	}
	var list []json.RawMessage
	if err := unmarshal(body, &list); err != nil {
		return nil, err
	}
	out := make([]Release, 0, len(list))
	for i, raw := range list {
		one, err := parseRelease(raw)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		out = append(out, one)
	}
	return out, nil
}

func parseRelease(body []byte) (Release, error) {
	o, err := parseObject(body)
	if err != nil {
		return Release{}, err
	}
	r := Release{
		SessionID: o.text("sessionId", maxTokenBytes),
		Namespace: o.text("namespace", maxTokenBytes),
		ID:        o.text("id", maxTokenBytes),
	}
	if digits := o.optionalText("epoch", maxTokenBytes); digits != "" {
		epoch, err := strconv.ParseUint(digits, 10, 53)
		if err != nil || epoch == 0 { // 0 would mean any placement
			o.fail("epoch", "must be decimal digits, above 0 and below 2^53")
		}
		r.Epoch = int64(epoch) // below 2^53
	}
	return r, o.err
}

// MarshalJSON writes the release as a worker sends it.
func (r Release) MarshalJSON() ([]byte, error) {
	var epoch string
	if r.Epoch != 0 {
		epoch = strconv.FormatInt(r.Epoch, 10)
	}
	return json.Marshal(struct {
		SessionID string `json:"sessionId"`
		Namespace string `json:"namespace"`
		ID        string `json:"id"`
		Epoch     string `json:"epoch,omitempty"`
	}{r.SessionID, r.Namespace, r.ID, epoch})
}

// Deregister is the body of POST /registry/deregister (protocol §2).
type Deregister struct {
	SessionID string `json:"sessionId"`
}

// ParseDeregister reads a deregistration; see ParseRegister for its errors.
func ParseDeregister(body []byte) (*Deregister, error) {
	o, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	d := &Deregister{SessionID: o.text("sessionId", maxTokenBytes)}
	return d, o.err
}
