package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// certificate is a certificate and its key in two PEM files. It looks at them
// at every handshake and reads them again when they have changed, so that a
// renewed certificate needs no restart. It is safe for concurrent use.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	log     *zap.Logger // nil until logTo
	current *tls.Certificate
	tried   [2]stamp // of the files that were last read, or could not be
}

// stamp changes with a file.
type stamp struct {
	changed time.Time
	size    int64
}

// readCertificate reads the files. The error says which of them is wrong,
// without anything that is in it.
func readCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if _, err := os.Stat(certFile); err != nil {
		return nil, fmt.Errorf("PINBOARD_TLS_CERT: %w", err)
	}
	if _, err := os.Stat(keyFile); err != nil {
		return nil, fmt.Errorf("PINBOARD_TLS_KEY: %w", err)
	}
	c.tried = c.stamps()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("PINBOARD_TLS_CERT, PINBOARD_TLS_KEY: %w", err)
	}
	c.current = &pair
	return c, nil
}

func (c *certificate) logTo(log *zap.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = log
}

// stamps is read before the files are: what changes in between is seen next
// time.
func (c *certificate) stamps() (out [2]stamp) {
	for i, name := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(name); err == nil {
			out[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return out
}

// get is a tls.Config's GetCertificate. While the files do not fit each other,
// as between the writing of the two, the last good pair serves on.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.stamps()
	if now == c.tried {
		return c.current, nil
	}
	c.tried = now
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		c.log.Warn("the certificate has changed and is not usable: the last one serves on", zap.Error(err))
		return c.current, nil
	}
	c.current = &pair
	c.log.Info("the certificate has changed", zap.Time("until", pair.Leaf.NotAfter))
	return c.current, nil
}
