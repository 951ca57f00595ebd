package wire

import (
	"math"
	"time"
)

// maxSeconds bounds durations, so that they fit a time.Duration: ten years.
const maxSeconds = 10 * 365 * 24 * 3600

// Drain is the body of POST /registry/drain (protocol §4).
type Drain struct {
	ClientID string
	// Deadline is nil if the worker may take its time. A longer one than ten
	// years counts as ten years.
	Deadline *time.Duration
}

// ParseDrain reads a drain; see ParseRegister for its errors.
func ParseDrain(body []byte) (*Drain, error) {
	o, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	d := &Drain{ClientID: o.text("clientId", maxTokenBytes)}
	if o.has("deadline") {
		d.Deadline = o.seconds("deadline")
	}
	return d, o.err
}

// ParseUndrain reads the body of POST /registry/undrain, {"clientId"}; see
// ParseRegister for its errors.
func ParseUndrain(body []byte) (clientID string, err error) {
	o, err := parseObject(body)
	if err != nil {
		return "", err
	}
	clientID = o.text("clientId", maxTokenBytes)
	return clientID, o.err
}

// WindDown is the body of POST /registry/wind_down (protocol §4).
type WindDown struct {
	Namespace string
	ID        string
	Hostname  string
	// Deadline is nil to revoke. A longer one than ten years counts as ten
	// years.
	Deadline *time.Duration
}

// ParseWindDown reads a wind-down; see ParseRegister for its errors. Namespace
// and id are checked, and the host name comes out normalised. The deadline must be
// there, if only as null, so that nobody revokes by forgetting it.
func ParseWindDown(body []byte) (*WindDown, error) {
	o, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	w := &WindDown{
		Namespace: o.text("namespace", math.MaxInt),
		ID:        o.text("id", math.MaxInt),
		Hostname:  o.optionalText("hostname", maxTokenBytes),
	}
	w.Hostname = o.hostname(w.Hostname)
	if err := CheckNamespace(w.Namespace); err != nil {
		o.fail("namespace", err.Error())
	}
	if err := CheckID(w.ID); err != nil {
		o.fail("id", err.Error())
	}
	if o.need("deadline") && string(o.raw["deadline"]) != "null" {
		w.Deadline = o.seconds("deadline")
	}
	return w, o.err
}

// seconds reads a duration.
func (o *object) seconds(field string) *time.Duration {
	s := min(o.amount(field), maxSeconds)
	d := time.Duration(math.Round(s * float64(time.Second)))
	return &d
}
