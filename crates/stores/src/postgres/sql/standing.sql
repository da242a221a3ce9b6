SELECT fence, lease_until IS NOT NULL FROM oncebox.delivery WHERE number = $1 FOR UPDATE
