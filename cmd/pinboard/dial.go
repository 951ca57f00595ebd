package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/quiet"
	"github.com/pinboard-go/pinboard/internal/store/redis"
)

const redisRetry = time.Second

// dial waits until Redis can be reached: a server that starts before its Redis
// needs no restart.
func dial(ctx context.Context, option rueidis.ClientOption, log *zap.Logger) (rueidis.Client, error) {
	for {
		client, err := redis.NewClient(option)
		if err == nil {
			return client, nil
		}
		if r := refusalOf(err); r != nil {
			log.Error("waiting for Redis", zap.String("error", r.says), zap.String("do", "REDIS_URL: "+r.do))
		} else {
			log.Warn("waiting for Redis", zap.String("error", withoutPassword(err, option)), hint(err, option))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(redisRetry):
		}
	}
}

// refusal is an answer of a Redis that waiting does not change, most likely.
type refusal struct {
	says string // how it begins
	do   string
}

var refusals = []refusal{
	{"WRONGPASS", "the server knows no such user, or another password; what is no letter or digit in them must be percent-encoded, a / as %2F"},
	{"NOAUTH", "the server wants a password: redis://USER:PASSWORD@HOST"},
	{"NOPERM", "give the user the rights that pinboard needs, see docs/threats.md"},
	{"DB index is out of range", "name a database that the server has, or none"},
	{"SELECT is not allowed in cluster mode", "name no database: a Redis Cluster has the first one alone"},
	{"This instance has cluster support disabled", "several hosts are nodes of one Redis Cluster, and this is none: name one host, or Sentinels with master_set=NAME"},
	{"unknown command 'SENTINEL'", "with master_set all hosts are Sentinels, and this is none: name Sentinels, or leave master_set out"},
	{"unknown command `SENTINEL`", "with master_set all hosts are Sentinels, and this is none: name Sentinels, or leave master_set out"},
	{"No such master with that name", "the Sentinels know no master of that name: correct master_set"},
}

var noTracking = refusal{"no CLIENT TRACKING", "give the user the right to CLIENT TRACKING; with a server that has none add client_cache=0"}

// refusalOf returns what is known of an answer; nil if it is none of these.
func refusalOf(err error) *refusal {
	if errors.Is(err, rueidis.ErrNoCache) {
		return &noTracking
	}
	answer, ok := errors.AsType[*rueidis.RedisError](err)
	if !ok {
		return nil
	}
	for i := range refusals {
		if strings.HasPrefix(answer.Error(), refusals[i].says) {
			return &refusals[i]
		}
	}
	return nil
}

// hint says what an error may come from: TLS with a server that does not speak it, or
// the other way round, mostly shows in silence.
func hint(err error, option rueidis.ClientOption) zap.Field {
	_, record := errors.AsType[tls.RecordHeaderError](err)
	ended := errors.Is(err, io.EOF)
	switch {
	case option.TLSConfig != nil && (record || ended || errors.Is(err, context.DeadlineExceeded)):
		return zap.String("hint", "REDIS_URL: does the server speak TLS at this port? rediss:// is with TLS, redis:// without")
	case option.TLSConfig == nil && ended:
		return zap.String("hint", "REDIS_URL: does the server want TLS at this port? redis:// is without TLS, rediss:// with")
	}
	return zap.Skip()
}

// shortest is how long a password is that can be told from a part of a word.
const shortest = 4

// withoutPassword returns the text of an error of connecting. There are servers
// and proxies that repeat the command that they do not understand, and the first
// one holds the password. What the network says holds none, and what looks like a
// short one in it is none: to leave it out would show the password.
func withoutPassword(err error, option rueidis.ClientOption) string {
	if ofNetwork(err) {
		return err.Error()
	}
	secrets := []string{option.Password, option.Sentinel.Password}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // one may be a part of the other
	text := err.Error()
	for _, secret := range secrets {
		switch {
		case secret == "":
		case len(secret) < shortest:
			return "an error of the server, not shown: the password may be anywhere in it"
		default:
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return quiet.Redis(text)
}

// ofNetwork reports whether an error holds nothing that the server has sent.
func ofNetwork(err error) bool {
	_, op := errors.AsType[*net.OpError](err)
	_, name := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	return op || name || certificate || record || errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded)
}
