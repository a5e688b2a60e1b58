def write(plan, folder):
    raise SystemExit
